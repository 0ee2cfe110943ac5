"""The state of a detector as bytes, to be kept by others and to go on elsewhere.

Spark keeps it in its state store, and a broker hands it to the next when a join point moves. Rules:

1. `restored(scheme, packed(detector))` goes on exactly as `detector` would have.
2. Each event is written once, however many matches wait with it. Keys are worked out anew; which
   parts an event matches is written, so that no filter is evaluated twice.
3. The bytes name their pattern, and how many matches may end with one event, which is part of what
   it means. Those of another pattern, of another version, or of no detector at all are a
   `RemoteError`: they come from elsewhere.

`step` does all at once: the state before and some events give the state behind and the findings.
"""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from anabranch.core.patterns.detector import (
    Detector,
    DetectorCounts,
    Pending,
    PendingEnd,
    StepResult,
)
from anabranch.core.patterns.event_store import Entry
from anabranch.core.patterns.plan import StepAllowance
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.core.patterns.search import Filled
from anabranch.model.errors import RemoteError
from anabranch.model.pattern.match import PlacedEvent

#: Another layout of the bytes gets another number.
PACKED_VERSION: Final = 2

_Count = Annotated[int, msgspec.Meta(ge=0)]
#: A match: its layout, and the numbers of its entries.
_PackedFilled = tuple[_Count, list[_Count]]
_Times = tuple[int, int]


class _PackedPending(msgspec.Struct, frozen=True, array_like=True):
    end_ns: int
    #: The entry it ends with, and the match; whether others that end with it are left out.
    entry: _Count
    filled: _PackedFilled | None
    is_cut: bool


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    version: int
    pattern: str
    matches_max: int
    horizon_ns: int
    decided_ns: int
    unsure: _Times | None
    tally: DetectorCounts
    #: Events and the parts they match: first those kept, then those waiting, then others that only
    #: pending matches have.
    events: list[tuple[PlacedEvent, _Count]]
    kept_count: _Count
    waiting_count: _Count
    pending: list[_PackedPending]
    #: What was reported at once, the crowded entries, and the times in which all are.
    reported: list[_PackedFilled]
    crowded: list[_Count]
    crowded_times: _Times | None
    #: Crowded entries that are to be decided, and what was reported for each.
    ended: list[tuple[_Count, list[_PackedFilled]]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Packed)


def packed(detector: Detector) -> bytes:
    """The whole state of a detector."""
    kept, waiting, pending = detector.kept, detector.waiting, detector.pending
    in_pending = [
        entry
        for _, _, last, filled, _ in pending
        for entry in (last, *(filled[1] if filled else ()))
    ]
    numbers: dict[tuple[str, int], int] = {}
    events: list[tuple[PlacedEvent, int]] = []
    for entry in (*kept, *waiting, *in_pending):
        if numbers.setdefault(entry[1:3], len(events)) == len(events):
            events.append((entry[5], entry[4]))

    def number_of(entry: Entry) -> int:
        return numbers[entry[1:3]]

    def shape_of(filled: Filled) -> _PackedFilled:
        return filled[0], [number_of(entry) for entry in filled[1]]

    waits = [
        _PackedPending(end_ns, number_of(last), shape_of(filled) if filled else None, is_cut)
        for end_ns, _, last, filled, is_cut in pending
    ]
    endings = detector.endings
    return _encoder.encode(
        _Packed(
            PACKED_VERSION,
            detector.scheme.text,
            detector.scheme.limits.pattern_matches_max,
            detector.horizon_ns,
            detector.decided_ns,
            detector.unsure,
            detector.tally,
            events,
            len(kept),
            len(waiting),
            waits,
            [shape_of(each) for each in endings.reported],
            [number_of(entry) for entry in endings.crowded],
            endings.times,
            [
                (number_of(entry), [shape_of(each) for each in some])
                for entry, some in detector.ended
            ],
        )
    )


def restored(
    scheme: PatternScheme, data: bytes, allowance: StepAllowance | None = None
) -> Detector:
    """A detector that goes on from the state `data`."""
    try:
        state = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteError(f"this is no state of a detector: {error}") from None
    if state.version != PACKED_VERSION:
        raise RemoteError(
            f"the state of a detector has version {state.version}; {PACKED_VERSION} is known"
        )
    if state.pattern != scheme.text:
        raise RemoteError("the state of a detector is that of another pattern")
    if state.matches_max != scheme.limits.pattern_matches_max:
        raise RemoteError(
            f"the state of a detector reports {state.matches_max} matches that end with one event,"
            f" and this one {scheme.limits.pattern_matches_max}; set pattern_matches_max as before"
        )
    detector = Detector(scheme, allowance)
    _check(scheme, state)
    entries = [detector.entry_of(event, parts) for event, parts in state.events]
    waiting_end = state.kept_count + state.waiting_count
    detector.put_back(
        entries[: state.kept_count],
        entries[state.kept_count : waiting_end],
        [_pending(number, each, entries) for number, each in enumerate(state.pending, 1)],
        state.unsure,
    )

    def filled_of(each: _PackedFilled) -> Filled:
        return each[0], tuple([entries[one] for one in each[1]])

    detector.endings.put_back(
        [filled_of(each) for each in state.reported],
        [entries[each] for each in state.crowded],
        state.crowded_times,
    )
    detector.put_ended(
        [PendingEnd(entries[one], [filled_of(each) for each in some]) for one, some in state.ended]
    )
    detector.horizon_ns = state.horizon_ns
    detector.decided_ns = state.decided_ns
    detector.tally = state.tally
    return detector


def step(
    scheme: PatternScheme,
    state: bytes,
    events: Iterable[PlacedEvent],
    watermark_ns: int | None = None,
) -> tuple[bytes, StepResult]:
    """Some events come, and perhaps time passes; b"" is the state in the beginning."""
    detector = restored(scheme, state) if state else Detector(scheme)
    found = [detector.take(event) for event in events]
    if watermark_ns is not None:
        found.append(detector.advance(watermark_ns))
    return packed(detector), StepResult(
        tuple(match for each in found for match in each.matches),
        tuple(event for each in found for event in each.late),
        tuple(overflow for each in found for overflow in each.overflows),
    )


def _check(scheme: PatternScheme, state: _Packed) -> None:
    """Refuse numbers that lead nowhere."""
    count = len(state.events)
    if state.kept_count + state.waiting_count > count:
        raise RemoteError("the state of a detector lacks events")
    if len({(event.stream, event.tick) for event, _ in state.events}) < count:
        raise RemoteError("the state of a detector has an event twice")
    if any(parts >> len(scheme.names) for _, parts in state.events):
        raise RemoteError("the state of a detector has events of parts that the pattern lacks")
    for each in state.pending:
        if (each.filled is None) != scheme.is_choosing:
            raise RemoteError("the state of a detector has a match of another policy")
    matches = [each.filled for each in state.pending if each.filled]
    matches += [*state.reported, *(filled for _, some in state.ended for filled in some)]
    for layout, entries in matches:
        if not _fits(scheme, layout, len(entries)):
            raise RemoteError("the state of a detector has a match that the pattern lacks")
        if max(entries) >= count:
            raise RemoteError("the state of a detector lacks events of a match")
    last = [*(each.entry for each in state.pending), *state.crowded]
    if max([*last, *(one for one, _ in state.ended)], default=-1) >= count:
        raise RemoteError("the state of a detector lacks events that matches end with")


def _fits(scheme: PatternScheme, layout: int, slots: int) -> bool:
    layouts = scheme.layouts
    return layout < len(layouts) and len(layouts[layout].alternative.parts) == slots


def _pending(number: int, each: _PackedPending, entries: list[Entry]) -> Pending:
    filled: Filled | None = None
    if each.filled is not None:
        filled = (each.filled[0], tuple(entries[one] for one in each.filled[1]))
    return each.end_ns, number, entries[each.entry], filled, each.is_cut
