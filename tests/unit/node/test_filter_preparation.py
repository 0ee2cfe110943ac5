"""What is read ahead for a frame: which texts, in which order, and how much at a time."""

import threading
from collections.abc import Callable

import pytest

from anabranch.core.patterns.join_points import records
from anabranch.model import filter as filters
from anabranch.model import read_ahead
from anabranch.model.client_frames import (
    ADVERTISED_CHARACTERS_MAX,
    ADVERTISEMENTS_MAX,
    Advertises,
    AnyClientFrame,
    Define,
    Publish,
    Subscribe,
)
from anabranch.model.errors import FilterError
from anabranch.model.filter import Filter
from anabranch.model.frames import Carry, LinkFrame, TakePoint
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.mesh_frames import Advertise, Advertised
from anabranch.model.pattern.match import PointRecord
from anabranch.model.read_ahead import forget_all
from anabranch.model.version import Version
from anabranch.node import frame_queue
from anabranch.node.frame_queue import FilterPreparation, Preparation

BOUND_S = 120.0
LONG = " OR ".join(f"a{n} = {n}" for n in range(40))
PATTERN = f"x:{{{LONG}}} THEN y:{{{LONG}}} WITHIN 10 s"
RECORD = PointRecord("p2", PATTERN, "simple", 0, "a", Version(1, 1))


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    forget_all()


def begun(every: FilterPreparation, frame: AnyClientFrame | LinkFrame) -> Preparation:
    found = every.begin(frame)
    assert found is not None
    return found


def done(preparation: Preparation) -> None:
    preparation.done.result(BOUND_S)
    preparation.use()


@pytest.mark.parametrize(
    "frame",
    [
        Subscribe(1, "s", LONG, "reliable"),
        Advertises([LONG, "a = 1"]),
        Advertises([f"price = {n}" for n in range(20)]),
        Define(1, "p1", PATTERN),
        Define(1, "p1", f"{PATTERN} and more"),
        Carry("a", "b", 3, TakePoint(RECORD)),
        Advertise("a", Version(1, 2), [Advertised(n, f"price = {n}", 1) for n in range(20)], []),
    ],
    ids=["subscribe", "advertises", "many", "define", "garbage", "take", "neighbour"],
)
def test_long_texts_of_a_frame_are_read_ahead_and_then_known(
    frame: AnyClientFrame | LinkFrame,
) -> None:
    every = FilterPreparation(DEFAULT_LIMITS)
    done(begun(every, frame))
    assert every.begin(frame) is None
    every.close()


@pytest.mark.parametrize(
    "frame",
    [
        Subscribe(1, "s", "a = 1", "reliable"),
        Define(1, "p", "{a = 1} WITHIN 1 s"),
        Publish([b"x" * 1_000]),
        Advertises([]),
        # The core refuses these by their size alone.
        Advertises(["a = 1"] * (ADVERTISEMENTS_MAX + 1)),
        Advertises(["x" * (ADVERTISED_CHARACTERS_MAX // 2 + 1)] * 2),
    ],
)
def test_short_texts_and_what_is_refused_by_its_size_are_not_read_ahead(
    frame: AnyClientFrame,
) -> None:
    every = FilterPreparation(DEFAULT_LIMITS)
    assert every.begin(frame) is None


def test_a_pattern_that_was_read_ahead_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    every = FilterPreparation(DEFAULT_LIMITS)
    for text in (PATTERN, f"{PATTERN} and more"):
        done(begun(every, Define(1, "p1", text)))
    every.close()

    def fails(*_: object) -> None:
        raise AssertionError("it is read in the loop")

    monkeypatch.setattr(records, "_read", fails)
    found = records.read_pattern("p1", PATTERN, DEFAULT_LIMITS)
    assert found.scheme.pattern_id == "p1"
    assert Filter.parse(found.subscribed) is found.wanted, "its join point would read it again"
    with pytest.raises(FilterError):
        records.read_pattern("p1", f"{PATTERN} and more", DEFAULT_LIMITS)


def test_what_was_made_for_a_frame_is_there_when_it_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others that prepare meanwhile do not push it out."""
    every = FilterPreparation(DEFAULT_LIMITS)
    monkeypatch.setattr(read_ahead, "READ_AHEAD_BYTES_MAX", 1_000_000)
    first = begun(every, Subscribe(1, "s", LONG, "reliable"))
    for n in range(12):
        text = " OR ".join(f"b{n} = '{'x' * 20_000}{i}'" for i in range(2))
        done(begun(every, Subscribe(1, "s", text, "reliable")))
    assert (LONG, DEFAULT_LIMITS) not in filters._prepared
    done(first)
    assert (LONG, DEFAULT_LIMITS) in filters._prepared
    every.close()


def test_frames_that_wait_hold_a_bounded_amount_and_go_on_when_others_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_queue, "READ_AHEAD_CHARACTERS_MAX", 2 * len(LONG) + 10)
    every = FilterPreparation(DEFAULT_LIMITS)
    frames = [Subscribe(1, "s", LONG.replace("a1", f"b{n}"), "reliable") for n in range(5)]
    waiting = [begun(every, frame) for frame in frames]
    for each in waiting[:2]:
        each.done.result(BOUND_S)
    idle(every)
    assert [each.done.done() for each in waiting] == [True, True, False, False, False]
    # Who leaves gives its place to the next; who had not begun leaves nothing behind.
    waiting[3].drop()
    waiting[0].drop()
    waiting[2].done.result(BOUND_S)
    idle(every)
    assert not waiting[4].done.done()
    done(waiting[1])
    done(waiting[4])
    assert not waiting[3].done.done()
    every.close()


def idle(every: FilterPreparation) -> None:
    """All that was given to the thread is done."""
    passed = threading.Event()
    assert every._executor is not None
    call: Callable[[], None] = passed.set
    every._executor.submit(call)
    assert passed.wait(BOUND_S)
