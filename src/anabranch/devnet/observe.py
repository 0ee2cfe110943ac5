"""A minimal HTTP client for the observe ports of brokers.

One connection per request: enough of HTTP for `/status`. A broker that does not answer within the
time limit counts as silent; one that answers with something else, or closes the connection, does
not speak HTTP. If a token file is given, its token is sent.
"""

import asyncio
import contextlib
from pathlib import Path

import msgspec

from anabranch.config.addresses import BrokerSettings
from anabranch.config.secrets import read_token

#: In place of a status code: the port accepts connections but does not speak HTTP.
NO_HTTP = 0
_ANSWER_BYTES_MAX = 16 * 1024 * 1024


class Identity(msgspec.Struct, frozen=True):
    """The fields of a status that identify a broker."""

    network: str
    broker: str
    pid: int
    state: str


_decoder = msgspec.json.Decoder(Identity)
#: States of a broker whose life has begun (`node.status.State`).
WAITING = "waiting for copies"
STARTED = (WAITING, "ready")


def identity(status: bytes) -> Identity:
    """The identity in a status; raises `msgspec.DecodeError` if it is not one."""
    return _decoder.decode(status)


async def ask(
    host: str, port: int, path: str, token_file: Path | None = None, within_s: float = 2.0
) -> tuple[int, bytes] | None:
    """The status code (or `NO_HTTP`) and body of the answer; None if there is none. Raises
    `LocalError` if the token file is not valid."""
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
        raise ValueError("malformed answer") from None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    while chunk := await reader.read(65_536):
        chunks.append(chunk)
        if sum(map(len, chunks)) > _ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
    return b"".join(chunks)


async def is_started(at: BrokerSettings, network: str, pid: int) -> bool:
    """Whether this process runs this broker: another process may have its port.

    A broker that waits for copies of its stream has started: they may be at brokers that start
    later."""
    answer = await ask(at.observe_host, at.observe_port, "/status", at.observe_token_file)
    if answer is None or answer[0] != 200:
        return False
    try:
        found = identity(answer[1])
    except msgspec.DecodeError:
        return False
    is_this = (found.network, found.broker, found.pid) == (network, at.name, pid)
    return is_this and found.state in STARTED
