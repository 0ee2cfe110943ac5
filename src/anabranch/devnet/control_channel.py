"""Errands: how another process asks a running `anabranch up` to change its network.

Both know the directory of the network, and nothing else of each other. In its folder `errands`,

    NUMBER.errand    what is wanted; it is there whole, and is taken away by whoever sees to it
    NUMBER.answer    one line of JSON for each thing that was said about it; the last one ends it

Rules:

1. An errand that nobody takes within `TAKEN_WITHIN_S` is withdrawn: no network runs there.
2. Errands are seen to one after the other, as they came. Those that were there before the network
   was started are thrown away; who left them has been told that nobody came.
3. What cannot be done is an answer with the reason, and changes nothing about the next errand.

State: these files. An answer is deleted when it was read to its end.
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
_LOOK_S = 0.1


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The network shall be this one."""

    #: A network file, and where it stood.
    text: str
    path: str
    abandon: bool = False
    within_s: float = 60.0


class ChangeProgress(msgspec.Struct, frozen=True):
    """What came of it so far."""

    text: str
    is_over: bool = False
    has_failed: bool = False


_json = msgspec.json.Encoder()
_errands = msgspec.json.Decoder(ChangeRequest)
_answers = msgspec.json.Decoder(ChangeProgress)


def send(directory: Path, errand: ChangeRequest) -> Iterator[str]:
    """Have it done, and tell what is said about it; `LocalError` if it cannot be done."""
    folder = directory / FOLDER
    if not directory.is_dir():
        raise LocalError(f"{directory} is not there; give the directory of a running network")
    folder.mkdir(exist_ok=True)
    request = folder / f"{time.time_ns():020}.errand"
    answer = request.with_suffix(".answer")
    save(request, _json.encode(errand).decode())
    _wait_until_taken(directory, request)
    read = 0
    while True:
        lines = answer.read_bytes().splitlines(keepends=True) if answer.exists() else []
        for line in lines[read:]:
            if not line.endswith(b"\n"):
                break
            read += 1
            said = _answers.decode(line)
            if said.is_over:
                answer.unlink()
                if said.has_failed:
                    raise LocalError(said.text)
                return
            yield said.text
        time.sleep(_LOOK_S)


def _wait_until_taken(directory: Path, request: Path) -> None:
    deadline = time.monotonic() + TAKEN_WITHIN_S
    while request.exists():
        if time.monotonic() >= deadline:
            request.unlink(missing_ok=True)
            raise LocalError(
                f"nobody runs the network in {directory}; start it with `anabranch up`, or, where"
                " brokers are started one by one, give them the file and send each SIGHUP"
            )
        time.sleep(_LOOK_S)


async def serve(network: LocalNetwork) -> None:
    """See to errands until this is cancelled."""
    folder = network.directory / FOLDER
    for old in _waiting(folder):
        _take(old)
    while True:
        for request in _waiting(folder):
            await _see_to(network, request)
        await asyncio.sleep(_LOOK_S)


def _waiting(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.errand"))


def _take(request: Path) -> ChangeRequest | None:
    try:
        data = request.read_bytes()
        request.unlink()
        return _errands.decode(data)
    except (FileNotFoundError, msgspec.DecodeError):
        # Withdrawn, or not of this version; then who waits for the answer is told nothing.
        return None


async def _see_to(network: LocalNetwork, request: Path) -> None:
    errand = _take(request)
    if errand is None:
        return
    with request.with_suffix(".answer").open("ab", buffering=0) as answer:

        def tell(text: str, *, is_over: bool = False, has_failed: bool = False) -> None:
            answer.write(_json.encode(ChangeProgress(text, is_over, has_failed)) + b"\n")

        try:
            file = loads(errand.text, Path(errand.path))
            await change(network, file, tell=tell, abandon=errand.abandon, within_s=errand.within_s)
        except (LocalError, OSError, msgspec.DecodeError) as error:
            tell(str(error), is_over=True, has_failed=True)
        else:
            tell("done", is_over=True)
