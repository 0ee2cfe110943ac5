"""Histories with batches: what is wrong with them has a name, and what is right has none."""

from collections.abc import Sequence

from anabranch.check import history as saw
from anabranch.check.checker import check
from tests.history_parts import EVERYTHING

ATTRIBUTES = {"t": 2, "u": 3, "v": 2, "none": 0}
END: list[saw.Record] = [saw.Healed(100.0), saw.Finished(200.0, ("o",))]


def drafted() -> list[saw.Record]:
    return [
        saw.Drafted(1.0, token, tuple({"a": n} for n in range(count)))
        for token, count in ATTRIBUTES.items()
    ]


def asked(batch: int, *tokens: str, time: float = 2.0) -> saw.BatchAsked:
    return saw.BatchAsked(time, "s", batch, tokens, "o")


def told(
    batch: int, *tokens: str, first: int = 0, last: int = 0, was_known: bool = False
) -> saw.BatchTold:
    return saw.BatchTold(3.0, "s", batch, tokens, first, last, was_known)


def logged(incarnation: int, first_tick: int, *drafts: tuple[str, int]) -> list[saw.Record]:
    return [
        saw.Logged("o", first_tick + place, "sink/s", incarnation, place + 1, None, draft)
        for place, draft in enumerate(drafts)
    ]


T = (("t", 0), ("t", 1))
U = (("u", 0), ("u", 1), ("u", 2))
V = (("v", 0), ("v", 1))


def names(*parts: saw.Record | Sequence[saw.Record]) -> list[str]:
    history = [*drafted()]
    for part in parts:
        history += [part] if isinstance(part, saw.Record) else part
    return [anomaly.name for anomaly in check([*history, *END])]


def test_a_batch_that_is_there_is_right() -> None:
    ask = asked(0, "t", "u")
    assert names(ask, logged(1, 1, *T, *U), told(0, "t", "u", first=1, last=5)) == []
    # Nobody was told yet, and it is not due.
    late = asked(0, "t", time=195.0)
    assert names(late, logged(1, 1, *T)) == []


def test_a_part_is_torn_and_so_is_a_mixture_or_another_order() -> None:
    both = (asked(0, "t"), asked(0, "v"), saw.SinkLeft(9.0, "s"))
    assert names(*both, logged(1, 1, T[0])) == ["torn-batch"]
    assert names(*both, logged(1, 1, T[0], V[1])) == ["torn-batch"]
    assert names(*both, logged(1, 1, T[1], T[0])) == ["torn-batch"]
    assert names(*both, logged(1, 1, *T, V[0])) == ["torn-batch"]
    assert names(*both, logged(1, 1, *V)) == []


def test_the_beginning_of_a_batch_is_no_anomaly_while_a_history_goes_on() -> None:
    history: list[saw.Record] = [*drafted(), asked(0, "t", "u"), *logged(1, 1, *T)]
    assert check(history) == []
    wrong = check([*history, *logged(2, 3, U[1])])
    assert [each.name for each in wrong] == ["torn-batch"]


def test_a_batch_that_is_there_twice_is_double() -> None:
    asks = (asked(0, "t"), asked(0, "u"))
    ticks = told(0, "t", first=1, last=2)
    assert names(*asks, logged(1, 1, *T), logged(2, 3, *U), ticks) == ["double-batch"]
    assert names(*asks, logged(1, 1, *T), logged(2, 3, *T), ticks) == ["double-batch"]


def test_batches_ascend() -> None:
    asks = (asked(1, "t"), asked(0, "u"), told(1, "t", first=1, last=2))
    down = told(0, "u", first=3, last=5)
    assert names(*asks, logged(1, 1, *T), logged(2, 3, *U), down) == ["double-batch"]


def test_a_batch_that_was_told_and_is_nowhere_is_lost() -> None:
    assert names(asked(0, "t"), told(0, "t", first=1, last=2)) == ["lost-batch"]
    assert names(asked(0, "t"), told(0, "t", was_known=True)) == ["lost-batch"]
    assert names(asked(0, "none"), told(0, "none")) == []
    # It was empty when it was committed for the first time.
    assert names(asked(0), asked(0, "t"), told(0), told(0, "t", was_known=True)) == []


def test_an_answer_comes_unless_nobody_waits() -> None:
    assert names(asked(0, "t"), logged(1, 1, *T)) == ["lost-batch"]
    assert names(asked(0, "t"), logged(1, 1, *T), saw.SinkLeft(9.0, "s")) == []


def test_a_batch_is_new_only_for_those_who_made_it() -> None:
    asks = (asked(0, "t"), asked(0, "u"), *logged(1, 1, *T))
    assert names(*asks, told(0, "u", was_known=True, first=1, last=2)) == []
    assert names(*asks, told(0, "u", first=1, last=2)) == ["wrongly-known"]
    new = told(0, "t", first=1, last=2)
    assert names(*asks, new, new) == ["wrongly-known"]


def test_what_is_known_was_asked_for_before() -> None:
    early, late = asked(0, "t"), asked(0, "u", time=50.0)
    known = told(0, "t", was_known=True, first=1, last=3)
    assert names(early, late, logged(1, 1, *U), known) == ["wrongly-known"]


def test_ticks_that_are_told_are_those_of_the_batch() -> None:
    history = (asked(0, "t"), *logged(1, 7, *T))
    assert names(*history, told(0, "t", first=7, last=8)) == []
    assert names(*history, told(0, "t", first=7, last=9)) == ["wrongly-known"]
    assert names(*history, told(0, "t", first=6, last=8, was_known=True)) == ["wrongly-known"]
    assert names(*history, told(0, "t")) == ["wrongly-known"]
    assert names(*history, told(0, "t", was_known=True)) == []


def test_events_of_a_batch_are_events_like_others() -> None:
    subscribed = saw.Subscribed(0.0, "x", EVERYTHING, "reliable")
    history = (asked(0, "t"), told(0, "t", first=1, last=2), subscribed)
    started = saw.Started(0.0, "x", "o", 1)
    given = [saw.Delivered(4.0, "x", "o", tick, "sink/s", 1, tick) for tick in (1, 2)]
    assert names(*history, logged(1, 1, *T), started, *given) == []
    assert names(*history, logged(1, 1, *T), started, given[0]) == ["lost"]
    assert names(*history, logged(1, 1, *T), started, *given, given[1]) == ["duplicate"]


def test_an_event_that_nobody_staged_is_a_phantom() -> None:
    assert "phantom" in names(asked(0, "t"), logged(1, 1, *T, ("t", 2)))
    assert "phantom" in names(asked(0, "t"), logged(1, 1, *T, ("nobody", 0)))
