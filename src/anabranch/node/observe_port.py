"""The observe port: a minimal HTTP server for monitoring.

    GET /health     200 `ok` if the broker is ready, otherwise 503 with its state
    GET /status     its status as JSON (`status`)
    GET /metrics    the same for Prometheus (`prometheus`)

HTTP/1.1 with one request per connection, which is enough for monitoring. Rules:

1. A request has at most `REQUEST_BYTES_MAX` bytes and must arrive within `REQUEST_S`; an answer
   must be read within `ANSWER_S`. There are at most `CONNECTIONS_MAX` connections. When another one
   arrives, the oldest is closed: a monitor has its answer within a round trip, so only idle
   connections are affected.
2. A request other than a GET of a known path gets an error response. So does input that cannot be
   HTTP, at once and without reading it: a client that uses the wrong port learns which one this is.
3. `/status` and `/metrics` are served only if the `Host` of the request is an address, localhost,
   or a configured name of the broker. A web page can make a browser send requests here by a name of
   its own that resolves to this address (DNS rebinding), but not by one of these.
4. With a token they are served only with `Authorization: Bearer TOKEN`. `/health` needs neither: it
   reveals no more than a connection attempt does.
5. All requests are read-only.

State: sockets only.
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
#: The page without access control.
_HEALTH = "/health"


class Page:
    """A response: code, type, body."""

    __slots__ = ("body", "code", "kind")

    def __init__(self, body: bytes, kind: str = "text/plain; charset=utf-8", code: int = 200):
        self.body = body
        self.kind = kind
        self.code = code

    def encoded(self, with_body: bool) -> bytes:
        """The response as bytes."""
        head = (
            f"HTTP/1.1 {self.code} {_REASONS[self.code]}\r\nContent-Type: {self.kind}\r\n"
            f"{_CHALLENGE if self.code == 401 else ''}"
            f"Content-Length: {len(self.body)}\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + (self.body if with_body else b"")


class ObservePort:
    """Serves the pages of a node. See the rules at the top of this module."""

    def __init__(
        self, pages: dict[str, Callable[[], Page]], hosts: Collection[str] = (), token: str = ""
    ) -> None:
        """`hosts`: accepted names besides addresses; `token`: "" disables authentication."""
        self._pages = pages
        self._hosts = {_plain(host) for host in (*hosts, "localhost")}
        self._token = token.encode()
        self._server: asyncio.Server | None = None
        #: Connections, oldest first.
        self._connections: dict[asyncio.StreamWriter, None] = {}

    async def start(self, sock: socket.socket) -> None:
        """Start serving on this socket."""
        self._server = await asyncio.start_server(
            self._serve, sock=sock, limit=REQUEST_BYTES_MAX, backlog=CONNECTIONS_MAX
        )

    def close(self) -> None:
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
            # A client that disconnects or is too slow gets no answer.
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
        """The response, and whether to include its body."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return Page(b"invalid HTTP request\n", code=400), True
        method, path = words[0], words[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return Page(b"only GET and HEAD are supported\n", code=405), True
        make = self._pages.get(path.decode("latin-1"))
        if make is None:
            known = ", ".join(self._pages)
            return Page(f"page not found; available: {known}\n".encode(), code=404), True
        refusal = None if path == _HEALTH.encode() else self._refusal(_fields(head))
        return (refusal, True) if refusal else (make(), method == b"GET")

    def _refusal(self, fields: dict[str, list[bytes]]) -> Page | None:
        """The error response for a request without access; None if access is granted."""
        hosts = fields.get("host", [])
        if len(hosts) != 1:
            return Page(b"a request needs exactly one Host\n", code=400)
        host = _plain(_without_port(hosts[0].decode("latin-1")))
        if host not in self._hosts and not _is_address(host):
            return Page(
                b"this Host is not a name of this broker; use its address, or add the name to"
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
    """The request up to its empty line, or only its first byte if that cannot start a method."""
    first = await reader.readexactly(1)
    return first + await reader.readuntil(b"\r\n\r\n") if first.isalpha() else first


def _fields(head: bytes) -> dict[str, list[bytes]]:
    """Field name in lower case → its values."""
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
