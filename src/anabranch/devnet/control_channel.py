"""The control channel: how `anabranch network apply` asks a running `anabranch up` for a change.

`anabranch up` listens on a Unix socket in the directory of its network; only the owner of the
directory can connect. A client sends one request, a line of JSON, and reads progress, one line of
JSON each, until the last one ends it. Rules:

1. Requests are served one after the other.
2. A request that cannot be served is answered with the reason and changes nothing for the next one.
3. A change that has begun is completed, even if the client disconnects.
4. The socket file is removed when the network stops. A file left by a killed process refuses
   connections, and the next start replaces it: `devnet.directory` admits one process at a time.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from anabranch.config.network_file import loads
from anabranch.devnet.network import LocalNetwork
from anabranch.devnet.resize import change
from anabranch.model.errors import LocalError

SOCKET = "control.sock"
#: The longest request: a network file has a few kilobytes.
_REQUEST_BYTES_MAX = 16 * 1024 * 1024
#: The address of a Unix socket has 108 bytes; a longer path is reached through its directory.
_ADDRESS_BYTES_MAX = 100


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make the running network the one of this file."""

    #: The text of a network file, and its path.
    text: str
    path: str
    abandon: bool = False
    within_s: float = 60.0


class ChangeProgress(msgspec.Struct, frozen=True):
    """One step of a change, or its end."""

    text: str
    is_over: bool = False
    has_failed: bool = False


_json = msgspec.json.Encoder()
_requests = msgspec.json.Decoder(ChangeRequest)
_progress = msgspec.json.Decoder(ChangeProgress)


def send(directory: Path, request: ChangeRequest) -> Iterator[str]:
    """Send a request and yield its progress; `LocalError` if it fails."""
    if not directory.is_dir():
        raise LocalError(f"{directory} does not exist; give the directory of a running network")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with _address(directory) as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            raise LocalError(
                f"no network is running in {directory}; start it with `anabranch up`, or, where"
                " brokers are started one by one, give them the file and send each SIGHUP"
            ) from None
        connection.sendall(_json.encode(request) + b"\n")
        with connection.makefile("rb") as lines:
            for line in lines:
                progress = _progress.decode(line)
                if progress.has_failed:
                    raise LocalError(progress.text)
                if progress.is_over:
                    return
                yield progress.text
    raise LocalError(f"the network in {directory} stopped before the change was complete")


async def serve(network: LocalNetwork) -> None:
    """Serve requests until this is cancelled."""
    turn = asyncio.Lock()
    #: Changes that have begun, so that the loop keeps them.
    changes: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun = asyncio.create_task(_serve_client(network, turn, reader, writer))
        changes.add(begun)
        begun.add_done_callback(changes.discard)

    path = network.directory / SOCKET
    path.unlink(missing_ok=True)
    with _address(network.directory) as address:
        server = await asyncio.start_unix_server(handle, address, limit=_REQUEST_BYTES_MAX)
    path.chmod(0o600)
    try:
        await server.serve_forever()
    finally:
        path.unlink(missing_ok=True)
        for each in changes:
            each.cancel()


async def _serve_client(
    network: LocalNetwork,
    turn: asyncio.Lock,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    def tell(text: str, *, is_over: bool = False, has_failed: bool = False) -> None:
        writer.write(_json.encode(ChangeProgress(text, is_over, has_failed)) + b"\n")

    try:
        request = _requests.decode(await reader.readuntil(b"\n"))
        file = loads(request.text, Path(request.path))
        async with turn:
            await change(
                network, file, tell=tell, abandon=request.abandon, within_s=request.within_s
            )
    except asyncio.IncompleteReadError:
        pass  # The client left before it had asked for anything.
    except asyncio.LimitOverrunError:
        tell(f"a request has at most {_REQUEST_BYTES_MAX} bytes", is_over=True, has_failed=True)
    except (LocalError, OSError, msgspec.DecodeError) as error:
        tell(str(error), is_over=True, has_failed=True)
    else:
        tell("done", is_over=True)
    finally:
        with suppress(OSError):
            await writer.drain()
        writer.close()


@contextmanager
def _address(directory: Path) -> Iterator[str]:
    """The address of the socket in a directory, however long its path is."""
    path = str(directory.absolute() / SOCKET)
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield path
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
