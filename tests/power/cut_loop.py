"""Power cuts, again and again: a broker lives, and every power cut of that life is tried.

    python -m tests.power.cut_loop --seed 3 --lives 3 --rounds 20 --chances 4 --json

A life is recorded (`workload`). After each call of its write stream the power may fail: then the
disk holds the stream up to there, and, in further images, what adversaries and chance leave of what
was not synced (`lossy_disk`). A store is started on every image and its broker is asked for all
that was promised up to that call (`recovery_check`). The next life begins on an image of this one
that chance chose, so that starts are interrupted too. Exit code 1 if a promise was broken.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

from tests.power import write_stream
from tests.power.lossy_disk import (
    ADVERSARIES,
    AS_WRITTEN,
    Chance,
    Choice,
    Disk,
    Image,
    lay_out,
    read_back,
)
from tests.power.promises import Conversation, Promises
from tests.power.recovery_check import BrokenPromiseError, Found, check, start, written_records
from tests.power.workload import live
from tests.power.write_stream import Call
from tests.store_parts import quick_directory


class Counts(msgspec.Struct, kw_only=True):
    """What was tried."""

    seed: int
    lives: int = 0
    #: Calls of all write streams after which the power failed.
    cuts: int = 0
    #: Pairs of an image and what was promised when it was left, that were checked.
    states: int = 0
    #: Different images that a store was started on.
    images: int = 0
    #: Of these, those of the write stream as it is, and those with unsynced writes lost.
    prefixes: int = 0
    losses: int = 0
    #: Images of which something torn was cut off.
    torn: int = 0
    events: int = 0
    promises: int = 0
    broken: int = 0
    why: str = ""


class Life(msgspec.Struct, frozen=True):
    """One life that was recorded."""

    image: Image
    inodes: dict[str, int]
    calls: list[Call]


def record(library: Path, image: Image, *, life: int, rounds: int, seed: int) -> Life:
    """Let a broker live on an image. The write stream must explain what is on the disk then."""
    with quick_directory() as folder:
        root = folder / "disk"
        root.mkdir()
        inodes = lay_out(image, root)
        trace = folder / "trace"
        calls = live(library, root, trace, life=life, rounds=rounds, seed=seed)
        disk = Disk(image, inodes)
        for call in calls:
            disk.take(call)
        left = read_back(root)
        assert disk.seen_by_process() == left, "the recorder missed a call"
        return Life(image, inodes, calls)


class Trial:
    """All power cuts of one life."""

    def __init__(self, life: Life, promises: Promises, counts: Counts) -> None:
        self._life = life
        self._disk = Disk(life.image, life.inodes)
        self._conversation = Conversation(promises)
        self._counts = counts
        self._found: dict[bytes, Found] = {}
        self._checked: set[tuple[bytes, int]] = set()
        self._written = written_records(life.calls, life.inodes, life.image)
        self._written.update(self._start(life.image).records)

    @property
    def promises(self) -> Promises:
        """What is promised at this place."""
        return self._conversation.promises

    @property
    def said(self) -> int:
        """How many frames have changed what is promised."""
        return self._conversation.count

    def calls(self) -> Iterator[tuple[int, bool]]:
        """Take the calls one by one; the number of each, and whether it changed the disk."""
        for number, call in enumerate(self._life.calls):
            self._conversation.take(call)
            yield number, self._disk.take(call)

    def cut(self, number: int, choice: Choice) -> Image:
        """The power fails after this call; `BrokenPromiseError` says what it cost."""
        image = self._disk.image(choice)
        key = (_digest(image), self._conversation.count)
        if key in self._checked:
            return image
        self._checked.add(key)
        counts = self._counts
        counts.states += 1
        if key[0] not in self._found:
            counts.images += 1
            if choice is AS_WRITTEN:
                counts.prefixes += 1
            else:
                counts.losses += 1
        try:
            check(self._start(image), self.promises, self._written)
        except BrokenPromiseError as error:
            place = f"life {counts.lives}, call {number} of {len(self._life.calls)}"
            raise BrokenPromiseError(f"{place}, {choice.name}: {error}") from error
        return image

    def _start(self, image: Image) -> Found:
        digest = _digest(image)
        if digest not in self._found:
            with quick_directory() as root:
                found = self._found[digest] = start(image, root)
            self._counts.torn += any("interrupted write" in note for note in found.notes)
        return self._found[digest]


def _digest(image: Image) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path, content in sorted(image.items()):
        is_directory = content is None
        digest.update(f"{path}\0{is_directory}\0{len(content or b'')}\0".encode())
        digest.update(content or b"")
    return digest.digest()


def try_life(
    life: Life, promises: Promises, counts: Counts, *, chances: int, seed: int, every: int = 1
) -> tuple[Image, Promises]:
    """Try every power cut of a life; one image of it, and what was promised then.

    Adversaries are tried after every so many calls that changed the disk."""
    draw = Random(f"{seed} {counts.lives}")
    trial = Trial(life, promises, counts)
    chosen = draw.randrange(len(life.calls) // 3, len(life.calls))
    left: tuple[Image, Promises] = ({}, Promises())
    changes, published = 0, len(promises.published)
    for number, is_changed in trial.calls():
        counts.cuts += 1
        image = trial.cut(number, AS_WRITTEN)
        if is_changed:
            changes += 1
            choices: list[Choice] = [Chance(draw.getrandbits(40)) for _ in range(chances)]
            if changes % every == 0:
                choices += ADVERSARIES
            for choice in choices:
                image = trial.cut(number, choice)
        if number == chosen:
            left = (image, trial.promises.copy())
    counts.events += len(trial.promises.published) - published
    counts.promises += trial.said
    return left


def run(library: Path, *, seed: int, lives: int, rounds: int, chances: int) -> Counts:
    """Several lives, each on what a power cut left of the one before."""
    counts = Counts(seed=seed)
    image: Image = {}
    promises = Promises()
    try:
        for life in range(lives):
            recorded = record(library, image, life=life, rounds=rounds, seed=seed)
            image, promises = try_life(recorded, promises, counts, chances=chances, seed=seed)
            counts.lives += 1
    except BrokenPromiseError as error:
        counts.broken, counts.why = 1, str(error)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Power cuts at every call of a broker's disk.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lives", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--chances", type=int, default=4, help="Random images per call")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if reason := write_stream.why_not():
        sys.stderr.write(f"{reason}\n")
        return 2
    folder = Path(tempfile.mkdtemp())
    try:
        counts = run(
            write_stream.build(folder),
            seed=given.seed,
            lives=given.lives,
            rounds=given.rounds,
            chances=given.chances,
        )
    finally:
        shutil.rmtree(folder)
    if given.json:
        sys.stdout.write(msgspec.json.encode(counts).decode() + "\n")
    else:
        for name, value in msgspec.structs.asdict(counts).items():
            sys.stdout.write(f"{name:10} {value}\n")
    return 1 if counts.broken else 0


if __name__ == "__main__":
    sys.exit(main())
