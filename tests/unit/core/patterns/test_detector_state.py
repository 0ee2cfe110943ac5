"""The state of a detector as bytes: it goes on elsewhere, and bad bytes are refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.patterns.detector import Detector
from anabranch.core.patterns.detector_state import packed, restored, step
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import RemoteError
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import Match
from tests.pattern_examples import SECOND_NS, history_of, pattern_of, written

SCHEME = PatternScheme(pattern_of("A THEN C THEN NOT B WHERE a.s = b.s WITHIN 5 s"), "p")


def busy() -> Detector:
    """A detector with something of everything."""
    detector = Detector(SCHEME)
    for event in history_of("A0p A2q C3 B4p C6 A9"):
        detector.take(event)
    detector.advance(5 * SECOND_NS)
    assert detector.kept
    assert detector.waiting
    assert detector.pending
    return detector


def test_packing_twice_gives_the_same_bytes() -> None:
    data = packed(busy())
    assert packed(restored(SCHEME, data)) == data


def test_step_by_step_finds_what_one_detector_finds() -> None:
    state = b""
    found: list[Match] = []
    for event in history_of("A0p A2q C3 B4p C6"):
        state, findings = step(SCHEME, state, [event], event.time_ns)
        found.extend(findings.matches)
    state, findings = step(SCHEME, state, [], 100 * SECOND_NS)
    assert [written(match) for match in (*found, *findings.matches)] == ["a1 c2", "a1 c4"]


def test_step_tells_of_late_events() -> None:
    late, on_time = history_of("A1 A9")
    _, findings = step(SCHEME, step(SCHEME, b"", [], 5 * SECOND_NS)[0], [late, on_time])
    assert findings.late == (late,)


def test_state_of_another_pattern_is_refused() -> None:
    other = PatternScheme(pattern_of("A THEN C WITHIN 5 s"))
    with pytest.raises(RemoteError, match="another pattern"):
        restored(other, packed(busy()))


def test_state_with_another_bound_on_matches_is_refused() -> None:
    other = PatternScheme(SCHEME.pattern, limits=Limits(pattern_matches_max=7))
    with pytest.raises(RemoteError, match="pattern_matches_max 100"):
        restored(other, packed(busy()))


def test_state_of_another_version_is_refused() -> None:
    raw = msgspec.msgpack.decode(packed(busy()))
    raw[0] = 99
    with pytest.raises(RemoteError, match="version 99"):
        restored(SCHEME, msgspec.msgpack.encode(raw))


EVENTS, KEPT, WAITING, PENDING, REPORTED, CROWDED, ENDED = 7, 8, 9, 10, 11, 12, 14


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (KEPT, 99),
        (WAITING, 99),
        (PENDING, [[0, 0, [7, [0, 1]], False]]),
        (PENDING, [[0, 0, [0, [0]], False]]),
        (PENDING, [[0, 0, [0, [0, 99]], False]]),
        (PENDING, [[0, 99, [0, [0, 1]], False]]),
        (PENDING, [[0, 0, None, False]]),
        (REPORTED, [[7, [0, 1]]]),
        (REPORTED, [[0, [0, 99]]]),
        (CROWDED, [99]),
        (ENDED, [[99, []]]),
        (ENDED, [[0, [[0, [0]]]]]),
        (EVENTS, [[["s", 1, 0, {}, b""], 8]] * 1),
        (EVENTS, [[["s", 1, 0, {}, b""], 1]] * 6),
        (EVENTS, [[["s", 1, 0, {"x": None}, b""], 1]]),
    ],
)
def test_state_with_numbers_that_lead_nowhere_is_refused(field: int, value: object) -> None:
    raw = msgspec.msgpack.decode(packed(busy()))
    raw[field] = value
    if field == EVENTS:
        raw[KEPT], raw[WAITING], raw[PENDING] = 0, 0, []
    with pytest.raises(RemoteError):
        restored(SCHEME, msgspec.msgpack.encode(raw))


@given(st.data())
def test_any_bytes_are_a_state_or_refused(data: st.DataObject) -> None:
    whole = bytearray(packed(busy()))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        detector = restored(SCHEME, bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except RemoteError:
        return
    detector.advance(100 * SECOND_NS)
