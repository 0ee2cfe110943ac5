"""Whenever the power fails, every copy of a stream is what the store promised, or what came after.

A store with copies is recorded (`copies_child`). After every call to its disk the power fails, and
a store is started on what may be left (`lossy_disk`). Rules:

1. It starts, and no copy is lost: nothing that a power cut does looks like damage.
2. Openings, cuts, drops, new beginnings of the own log, and puts are those of one moment: of the
   last sync, or later.
3. A copy holds its records from its beginning, or from what was deleted, to its last synced one, or
   further; so does the own log.
"""

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from anabranch.core.contract import Recovered
from anabranch.model.errors import AnabranchError
from anabranch.store.log import records_after
from anabranch.store.store import Store
from tests.power import write_stream
from tests.power.copies_child import OPTIONS, Step, body, copy_of, no_time
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
from tests.power.mutants import Plant, names_above_are_not_synced
from tests.power.write_stream import Call, calls_of, recording
from tests.store_parts import Ears, quick_directory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(write_stream.why_not()), reason=write_stream.why_not() or "it can"),
]
STATE = "lib/b"
BOUND_S = 300.0
ROUNDS = 36


class Life(msgspec.Struct, frozen=True):
    """What one process did, on the disk that it found."""

    image: Image
    inodes: dict[str, int]
    calls: list[Call]


class Found(msgspec.Struct, frozen=True):
    """What a start found."""

    recovered: Recovered
    #: Stream → tick → record; "" is the own stream.
    records: dict[str, dict[int, bytes]]


class Copy(msgspec.Struct):
    """A copy, as the steps made it."""

    number: int
    first: int
    #: The last tick that was appended, and the last one that is synced.
    last: int
    promised: int
    forgotten: int = 0
    #: (tick, number of the records from there on), in order.
    parts: list[tuple[int, int]] = []

    def append(self, tick: int, count: int, number: int) -> None:
        self.parts = [part for part in self.parts if part[0] < tick]
        if not self.parts or self.parts[-1][1] != number:
            self.parts.append((tick, number))
        self.last = max(self.last, tick + count - 1)

    def number_at(self, tick: int) -> int:
        return [number for first, number in self.parts if first <= tick][-1]

    def cut(self, tick: int) -> "Copy":
        """What a cut leaves."""
        parts = [part for part in self.parts if part[0] <= tick]
        return Copy(self.number, self.first, tick, min(self.promised, tick), self.forgotten, parts)


def found_copy(first: int, last: int, records: dict[int, bytes]) -> Copy:
    parts: list[tuple[int, int]] = []
    for tick, record in records.items():
        if not parts or parts[-1][1] != copy_of(record):
            parts.append((tick, copy_of(record)))
    return Copy(parts[-1][1] if parts else -1, first, last, last, first - 1, parts)


class Moment(msgspec.Struct):
    """The catalog after some of its changes."""

    put: int
    own: Copy
    copies: dict[str, Copy]


class Promises:
    """What the steps so far promise."""

    def __init__(self, found: Found) -> None:
        recovered = found.recovered
        own = found_copy(recovered.first_tick, recovered.last_tick, found.records[""])
        copies = {
            stream: found_copy(copy.first_tick, copy.last_tick, found.records[stream])
            for stream, copy in recovered.copies.items()
        }
        put = int(recovered.catalog.get("t", {}).get("n", b"0"))
        #: Every state of the catalog that may be on disk, the oldest first.
        self.moments = [Moment(put, own, copies)]
        #: How many steps were taken before each of them.
        self._taken = [0]
        #: (position, copy, last tick) of appends that are not synced.
        self._appends: list[tuple[int, Copy, int]] = []
        self.count = 0

    def take(self, step: Step) -> None:
        newest = self.moments[-1]
        copy = newest.copies.get(step.stream, newest.own)
        self.count += 1
        if step.what == "append":
            copy.append(step.tick, step.count, step.copy)
            self._appends.append((self.count, copy, step.tick + step.count - 1))
        elif step.what == "forget":
            copy.forgotten = max(copy.forgotten, step.tick)
        elif step.what == "refused":
            # The copy may have been dropped meanwhile.
            self._appends = [
                (place, each, min(last, step.tick) if each.number == step.copy else last)
                for place, each, last in self._appends
            ]
        elif step.what == "synced":
            self._synced(step.steps)
        else:
            self._change(newest, step)

    def _change(self, newest: Moment, step: Step) -> None:
        copies, put, own = dict(newest.copies), newest.put, newest.own
        if step.what == "reset":
            own = Copy(step.copy, step.tick, step.tick - 1, step.tick - 1)
        elif step.what == "cut":
            old = copies[step.stream]
            copies[step.stream] = new = old.cut(step.tick)
            self._appends += [
                (place, new, min(last, step.tick))
                for place, each, last in self._appends
                if each is old
            ]
        elif step.what == "open":
            copies[step.stream] = Copy(step.copy, step.tick, step.tick - 1, step.tick - 1)
        elif step.what == "drop":
            del copies[step.stream]
        else:
            put = step.tick
        self.moments.append(Moment(put, own, copies))
        self._taken.append(self.count)

    def _synced(self, steps: int) -> None:
        for place, copy, last in self._appends:
            if place <= steps:
                copy.promised = max(copy.promised, last)
        self._appends = [each for each in self._appends if each[0] > steps]
        while len(self._taken) > 1 and self._taken[1] <= steps:
            del self._taken[0], self.moments[0]

    def check(self, found: Found) -> str:
        """What is wrong with what a start found; "" if nothing is."""
        if found.recovered.lost_copies:
            return f"lost {found.recovered.lost_copies}"
        put = int(found.recovered.catalog.get("t", {}).get("n", b"0"))
        reasons = []
        for moment in self.moments:
            reason = _flaw("", moment.own, found)
            if moment.put != put:
                reason = f"put {moment.put}, not {put}"
            if moment.copies.keys() != found.recovered.copies.keys():
                reason = f"copies {[*moment.copies]}, not {[*found.recovered.copies]}"
            for stream, copy in moment.copies.items():
                reason = reason or _flaw(stream, copy, found)
            if not reason:
                return ""
            reasons.append(reason)
        return "; or ".join(reasons)


def _flaw(stream: str, copy: Copy, found: Found) -> str:
    """What is wrong with a log; "" if nothing is."""
    records = found.records[stream]
    if stream:
        first = found.recovered.copies[stream].first_tick
        last = found.recovered.copies[stream].last_tick
    else:
        first, last = found.recovered.first_tick, found.recovered.last_tick
    if not copy.first <= first <= max(copy.first, copy.forgotten + 1):
        return f"{stream!r} begins with {first}, not {copy.first} (to {copy.forgotten} deleted)"
    if not copy.promised <= last <= copy.last:
        return f"{stream!r} ends with {last}, not {copy.promised} to {copy.last}"
    ticks = range(first, last + 1)
    if records != {tick: body(stream, copy.number_at(tick), tick) for tick in ticks}:
        return f"{stream!r} holds other records than it was given"
    return ""


# -- lives ----------------------------------------------------------------------------------------


def live(library: Path, image: Image, seed: str) -> Life:
    """Let a store live on an image. The write stream must explain what is on the disk then."""
    with quick_directory() as folder:
        root = folder / "disk"
        root.mkdir()
        inodes = lay_out(image, root)
        trace = folder / "trace"
        command = [sys.executable, "-m", "tests.power.copies_child", str(root / STATE)]
        subprocess.run(
            [*command, seed, str(ROUNDS)],
            env=recording(library, root, trace),
            cwd=Path(__file__).parents[2],
            check=True,
            timeout=BOUND_S,
        )
        calls = calls_of(trace)
        disk = Disk(image, inodes)
        for call in calls:
            disk.take(call)
        assert disk.seen_by_process() == read_back(root), "the recorder missed a call"
        return Life(image, inodes, calls)


def start(image: Image) -> Found:
    """Start a store on an image."""
    with quick_directory() as root:
        lay_out(image, root)
        ears = Ears()
        store = Store.open(
            root / STATE, network="n", broker="b", options=OPTIONS, listener=ears, time_of=no_time
        )
        recovered = store.recovered
        firsts = {stream: copy.first_tick for stream, copy in recovered.copies.items()}
        firsts[""] = recovered.first_tick
        records = {
            stream: dict(records_after(store.pieces(stream), first))
            for stream, first in firsts.items()
        }
        store.close()
        assert not ears.errors
        return Found(recovered, records)


class Trial:
    """All power cuts of one life."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.disk = Disk(life.image, life.inodes)
        self.promises = Promises(start(life.image))
        self._unread = b""
        self._found: dict[bytes, Found] = {}
        self.starts = 0
        #: What was done how often.
        self.steps: Counter[str] = Counter()

    def calls(self) -> Iterator[tuple[int, bool]]:
        for number, call in enumerate(self._life.calls):
            if call.kind == ">":
                *lines, self._unread = (self._unread + call.data).split(b"\n")
                for line in lines:
                    step = msgspec.json.decode(line, type=Step)
                    self.steps[step.what] += 1
                    self.promises.take(step)
            yield number, self.disk.take(call)

    def cut(self, number: int, choice: Choice) -> Image:
        """The power fails after this call."""
        image = self.disk.image(choice)
        digest = hashlib.blake2b(repr(sorted(image.items())).encode()).digest()
        if digest not in self._found:
            self.starts += 1
            try:
                self._found[digest] = start(image)
            except AnabranchError as error:
                raise AssertionError(f"call {number}, {choice.name}: {error}") from error
        wrong = self.promises.check(self._found[digest])
        assert not wrong, f"call {number}, {choice.name}: {wrong}"
        return image


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stream.build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def first_life(library: Path) -> Life:
    return live(library, {}, "seed 1")


def try_life(life: Life, seed: int) -> tuple[Trial, Image]:
    """Try every power cut of a life; an image of a late one."""
    trial = Trial(life)
    image: Image = {}
    changes = 0
    for number, is_changed in trial.calls():
        trial.cut(number, AS_WRITTEN)
        if is_changed:
            changes += 1
            choices: list[Choice] = [Chance(seed * 10**6 + number)]
            choices += ADVERSARIES if changes % 8 == 0 else ()
            for choice in choices:
                found = trial.cut(number, choice)
                if number < len(life.calls) * 4 // 5:
                    image = found
    return trial, image


def test_every_power_cut_of_two_lives_keeps_the_copies(library: Path, first_life: Life) -> None:
    trial, image = try_life(first_life, 1)
    assert trial.starts > 500
    # Little happened otherwise, and little was proven.
    assert trial.steps["synced"] > 20
    assert (
        min(trial.steps[what] for what in ("open", "cut", "drop", "reset", "refused", "forget")) > 1
    )
    # The second life begins with a recovery.
    trial, _ = try_life(live(library, image, "seed 2"), 2)
    assert trial.starts > 500


# -- bugs that must be found


def _without(calls: Sequence[Call], kind: str, part: str) -> list[Call]:
    """The calls without the syncs of files, or of directories, of copies."""
    paths: dict[int, str] = {}
    gone = set()
    for call in calls:
        if call.kind in "CD":
            paths[call.inode] = call.text
        path = paths.get(call.inode, "")
        if call.kind == "B" and part in path and path.endswith(kind):
            gone.add(call.one)
    assert gone
    return [call for call in calls if call.kind not in "BS" or call.one not in gone]


def copies_are_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fdatasync of segments of copies."""
    return _without(calls, ".segment", "/copies/")


def names_of_copies_are_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fsync of the directory of all copies."""
    return _without(calls, "/copies", "/copies")


def names_of_segments_are_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fsync of the directories of single copies."""
    paths = {call.inode: call.text for call in calls if call.kind == "D"}
    gone = {
        call.one for call in calls if call.kind == "B" and "/copies/" in paths.get(call.inode, "")
    }
    assert gone
    return [call for call in calls if call.kind not in "BS" or call.one not in gone]


def files_are_deleted_before_the_catalog(calls: Sequence[Call]) -> list[Call]:
    """Segments of copies are deleted some calls too early."""
    found: list[Call] = []
    for call in calls:
        at = len(found)
        if call.kind == "U" and "/copies/" in call.text and call.text.endswith(".segment"):
            syncs = [place for place, each in enumerate(found) if each.kind == "S"]
            created = [
                place
                for place, each in enumerate(found)
                if each.kind == "C" and each.text == call.text
            ]
            at = max([*syncs[-3:-2], *(place + 1 for place in created)])
        found.insert(at, call)
    return found


@pytest.mark.parametrize(
    "plant",
    [
        copies_are_not_synced,
        names_of_copies_are_not_synced,
        names_of_segments_are_not_synced,
        files_are_deleted_before_the_catalog,
        names_above_are_not_synced,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(first_life: Life, plant: Plant) -> None:
    planted = msgspec.structs.replace(first_life, calls=plant(first_life.calls))
    with pytest.raises(AssertionError, match=r"call \d+"):
        _try_quickly(planted)


def _try_quickly(life: Life) -> None:
    trial = Trial(life)
    for number, _ in trial.calls():
        for choice in (ADVERSARIES[0], Chance(number)):
            trial.cut(number, choice)
