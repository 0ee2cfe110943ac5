"""Asking a broker of this machine how it is, over its observe port.

One question, one connection, one answer: enough of HTTP for `/status`. Whoever does not answer
within the bound counts as silent; who answers something else, or hangs up, does not speak HTTP. A
broker that wants a token is shown the one in the file that is given.
This module keeps no state.
"""

import asyncio
import contextlib
from pathlib import Path

import msgspec

from anabranch.config.addresses import BrokerSettings
from anabranch.config.secrets import read_token

#: In place of a status: somebody is there, and does not speak HTTP.
NO_HTTP = 0
_ANSWER_BYTES_MAX = 16 * 1024 * 1024


class Serving(msgspec.Struct, frozen=True):
    """What a broker that serves says of itself, as far as it matters here."""

    network: str
    broker: str
    pid: int
    state: str


_decoder = msgspec.json.Decoder(Serving)


async def ask(
    host: str, port: int, path: str, token_file: Path | None = None, within_s: float = 2.0
) -> tuple[int, bytes] | None:
    """Status (or `NO_HTTP`) and body of the answer; None if there is none. `LocalError` if the
    token file cannot be used."""
    token = "" if token_file is None else read_token(token_file)
    try:
        async with asyncio.timeout(within_s):
            return await _ask(host, port, path, token)
    except (OSError, ValueError, EOFError):
        return None


async def _ask(host: str, port: int, path: str, token: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(host, port, limit=_ANSWER_BYTES_MAX)
    try:
        name = f"[{host}]" if ":" in host else host
        shown = f"Authorization: Bearer {token}\r\n" if token else ""
        question = f"GET {path} HTTP/1.1\r\nHost: {name}\r\n{shown}Connection: close\r\n\r\n"
        writer.write(question.encode())
        head, _, body = (await _read_all(reader)).partition(b"\r\n\r\n")
        return (int(head.split(None, 2)[1]), body) if head.startswith(b"HTTP/") else (NO_HTTP, b"")
    except IndexError:
        raise ValueError("this is no answer") from None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    while chunk := await reader.read(65_536):
        chunks.append(chunk)
        if sum(map(len, chunks)) > _ANSWER_BYTES_MAX:
            raise ValueError("the answer has no end")
    return b"".join(chunks)


async def is_serving(at: BrokerSettings, network: str, pid: int) -> bool:
    """Whether this very process serves there, as this broker: others may have its port."""
    answer = await ask(at.observe_host, at.observe_port, "/status", at.observe_token_file)
    if answer is None or answer[0] != 200:
        return False
    try:
        return _decoder.decode(answer[1]) == Serving(network, at.name, pid, "ready")
    except msgspec.DecodeError:
        return False
