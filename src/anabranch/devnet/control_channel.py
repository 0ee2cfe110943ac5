"""The control channel of `anabranch up`: change requests from other processes, through files.

The two processes share only the directory of the network. Its subdirectory `errands` holds

    NUMBER.errand    a request, written atomically; the network deletes it when it takes it
    NUMBER.answer    one JSON line per progress message; the last one ends the answer

Rules

1. A request that is not taken within `TAKEN_WITHIN_S` is withdrawn: no network runs there.
2. Requests are processed one at a time, in order. Requests older than the start of the network are
   discarded; their senders have already given up.
3. A request that fails is answered with the reason and does not affect the next one.

State: these files. The sender deletes an answer after reading it to its end.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from anabranch.config.network_file import loads, save
from anabranch.devnet.network import LocalNetwork
from anabranch.devnet.resize import change
from anabranch.model.errors import LocalError

FOLDER = "errands"
TAKEN_WITHIN_S = 5.0
_POLL_S = 0.1


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to change the network."""

    #: The text of a network file, and its path.
    text: str
    path: str
    abandon: bool = False
    within_s: float = 60.0


class ChangeProgress(msgspec.Struct, frozen=True):
    """One message of an answer."""

    text: str
    is_over: bool = False
    has_failed: bool = False


_json = msgspec.json.Encoder()
_requests = msgspec.json.Decoder(ChangeRequest)
_answers = msgspec.json.Decoder(ChangeProgress)


def send(directory: Path, request: ChangeRequest) -> Iterator[str]:
    """Send a request and yield its progress messages; raises `LocalError` if it fails."""
    folder = directory / FOLDER
    if not directory.is_dir():
        raise LocalError(f"{directory} does not exist; give the directory of a running network")
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.time_ns():020}.errand"
    answer = path.with_suffix(".answer")
    save(path, _json.encode(request).decode())
    _wait_until_taken(directory, path)
    read = 0
    while True:
        lines = answer.read_bytes().splitlines(keepends=True) if answer.exists() else []
        for line in lines[read:]:
            if not line.endswith(b"\n"):
                break
            read += 1
            progress = _answers.decode(line)
            if progress.is_over:
                answer.unlink()
                if progress.has_failed:
                    raise LocalError(progress.text)
                return
            yield progress.text
        time.sleep(_POLL_S)


def _wait_until_taken(directory: Path, path: Path) -> None:
    deadline = time.monotonic() + TAKEN_WITHIN_S
    while path.exists():
        if time.monotonic() >= deadline:
            path.unlink(missing_ok=True)
            raise LocalError(
                f"the network in {directory} is not running; start it with `anabranch up`, or, if"
                " its brokers are started one by one, give them the file and send each SIGHUP"
            )
        time.sleep(_POLL_S)


async def serve(network: LocalNetwork) -> None:
    """Process requests until cancelled."""
    folder = network.directory / FOLDER
    for old in _pending(folder):
        _take(old)
    while True:
        for path in _pending(folder):
            await _process(network, path)
        await asyncio.sleep(_POLL_S)


def _pending(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.errand"))


def _take(path: Path) -> ChangeRequest | None:
    try:
        data = path.read_bytes()
        path.unlink()
        return _requests.decode(data)
    except (FileNotFoundError, msgspec.DecodeError):
        # Withdrawn, or written by another version; the sender gets no answer.
        return None


async def _process(network: LocalNetwork, path: Path) -> None:
    request = _take(path)
    if request is None:
        return
    with path.with_suffix(".answer").open("ab", buffering=0) as answer:

        def tell(text: str, *, is_over: bool = False, has_failed: bool = False) -> None:
            answer.write(_json.encode(ChangeProgress(text, is_over, has_failed)) + b"\n")

        try:
            file = loads(request.text, Path(request.path))
            await change(
                network, file, tell=tell, abandon=request.abandon, within_s=request.within_s
            )
        except (LocalError, OSError, msgspec.DecodeError) as error:
            tell(str(error), is_over=True, has_failed=True)
        else:
            tell("done", is_over=True)
