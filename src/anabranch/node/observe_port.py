"""The observe port: a little HTTP, for monitors and for people.

    GET /health     200 `ok` if the broker serves, 503 with its state if it does not
    GET /status     what it says about itself, as JSON (`status`)
    GET /metrics    the same for Prometheus (`exposition`)

HTTP/1.1 with one request per connection, which is all that monitors need. Rules:

1. A request has at most `REQUEST_BYTES_MAX` bytes and `REQUEST_S` to arrive, an answer has
   `ANSWER_S` to be taken; there are at most `CONNECTIONS_MAX` connections. When one more comes, the
   oldest is cut: a monitor has its answer within a round trip, so idle connections lose.
2. Whatever is not a GET of a known path gets an answer that says so; so does at once, and without
   being read, what cannot be HTTP: a client that took this for its own port learns what it is.
3. `/status` and `/metrics` are answered only if the `Host` of the request is an address, localhost,
   or a name that the broker was told to have. A web page can make a browser ask this port by a name
   of its own that leads here (DNS rebinding), but not by one of these.
4. With a token they are answered only to `Authorization: Bearer TOKEN`. `/health` needs neither: it
   says nothing that connecting does not say.
5. Nothing here changes anything.

This module keeps no state but its sockets.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Callable, Collection

REQUEST_BYTES_MAX = 8_192
REQUEST_S = 5.0
ANSWER_S = 10.0
CONNECTIONS_MAX = 64

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


_CHALLENGE = 'WWW-Authenticate: Bearer realm="anabranch"\r\n'
#: The page that is for everybody.
_HEALTH = "/health"


class Page:
    """An answer: code, type, text."""

    __slots__ = ("body", "code", "kind")

    def __init__(self, body: bytes, kind: str = "text/plain; charset=utf-8", code: int = 200):
        self.body = body
        self.kind = kind
        self.code = code

    def encoded(self, with_body: bool) -> bytes:
        """The answer as it travels."""
        head = (
            f"HTTP/1.1 {self.code} {_REASONS[self.code]}\r\nContent-Type: {self.kind}\r\n"
            f"{_CHALLENGE if self.code == 401 else ''}"
            f"Content-Length: {len(self.body)}\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + (self.body if with_body else b"")


class ObservePort:
    """Answers questions about a node. See the rules at the top of this module."""

    def __init__(
        self, pages: dict[str, Callable[[], Page]], hosts: Collection[str] = (), token: str = ""
    ) -> None:
        """`hosts`: names by which it may be asked, beside addresses; `token`: "" asks for none."""
        self._pages = pages
        self._hosts = {_plain(host) for host in (*hosts, "localhost")}
        self._token = token.encode()
        self._server: asyncio.Server | None = None
        #: In the order in which they came.
        self._connections: dict[asyncio.StreamWriter, None] = {}

    async def start(self, plug: socket.socket) -> None:
        """Answer whoever connects here."""
        self._server = await asyncio.start_server(
            self._serve, sock=plug, limit=REQUEST_BYTES_MAX, backlog=CONNECTIONS_MAX
        )

    def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            # Whoever goes away, or takes too long, does not want an answer.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await _head(reader)
        except asyncio.LimitOverrunError:
            page, with_body = Page(b"the request is too large\n", code=431), True
        else:
            page, with_body = self._page(head)
        async with asyncio.timeout(ANSWER_S):
            writer.write(page.encoded(with_body))
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    def _page(self, head: bytes) -> tuple[Page, bool]:
        """The answer, and whether its body is wanted."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return Page(b"this is no request\n", code=400), True
        method, path = words[0], words[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return Page(b"only GET and HEAD are answered here\n", code=405), True
        make = self._pages.get(path.decode("latin-1"))
        if make is None:
            known = ", ".join(self._pages)
            return Page(f"there is no such page; there are {known}\n".encode(), code=404), True
        refusal = None if path == _HEALTH.encode() else self._refusal(_fields(head))
        return (refusal, True) if refusal else (make(), method == b"GET")

    def _refusal(self, fields: dict[str, list[bytes]]) -> Page | None:
        """Why this request is not answered; None if it is."""
        hosts = fields.get("host", [])
        if len(hosts) != 1:
            return Page(b"a request has one Host\n", code=400)
        host = _plain(_without_port(hosts[0].decode("latin-1")))
        if host not in self._hosts and not _is_address(host):
            return Page(
                b"this Host is none of this broker's names; ask by its address, or add the name to"
                b" observe_hosts in the network file\n",
                code=421,
            )
        if not self._token:
            return None
        shown = fields.get("authorization", [])
        scheme, _, token = (shown[0] if len(shown) == 1 else b"").partition(b" ")
        is_right = hmac.compare_digest(token.strip(), self._token)
        if scheme.lower() == b"bearer" and is_right:
            return None
        return Page(b"this page needs a token: Authorization: Bearer TOKEN\n", code=401)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """The request, up to its empty line; only its first byte if that begins no method."""
    first = await reader.readexactly(1)
    return first + await reader.readuntil(b"\r\n\r\n") if first.isalpha() else first


def _fields(head: bytes) -> dict[str, list[bytes]]:
    """Field, in lower case → its values."""
    fields: dict[str, list[bytes]] = {}
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            fields.setdefault(name.decode("latin-1").lower(), []).append(value.strip())
    return fields


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
