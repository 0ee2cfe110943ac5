"""Serialized detector state: pack a detector into bytes and restore it elsewhere.

Spark keeps the bytes in its state store. Rules:

1. `restored(scheme, packed(detector))` continues exactly as `detector` would have.
2. Each event is written once, regardless of how many pending matches contain it. Keys are computed
   again; the parts that an event matches are written, so that no filter is evaluated twice.
3. The bytes contain the pattern and the number of matches reported per end event, which is part of
   the pattern's meaning. Bytes of another pattern or version, or that are not detector state at
   all, raise `RemoteError`: they come from outside.

`step` does everything in one call: the state before and some events give the state after and the
findings.
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

#: Changes with the layout of the bytes.
PACKED_VERSION: Final = 2

_Count = Annotated[int, msgspec.Meta(ge=0)]
#: A match: its layout, and the numbers of its entries.
_PackedFilled = tuple[_Count, list[_Count]]
_Times = tuple[int, int]


class _PackedPending(msgspec.Struct, frozen=True, array_like=True):
    end_ns: int
    #: The end entry, and the match; whether further matches of the entry are left out.
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
    #: Events and the parts they match: first the kept ones, then the waiting ones, then those that
    #: occur only in pending matches.
    events: list[tuple[PlacedEvent, _Count]]
    kept_count: _Count
    waiting_count: _Count
    pending: list[_PackedPending]
    #: Matches reported at once, crowded entries, and the interval in which all entries are crowded.
    reported: list[_PackedFilled]
    crowded: list[_Count]
    crowded_times: _Times | None
    #: Crowded entries to be decided, and the matches already reported for each.
    ended: list[tuple[_Count, list[_PackedFilled]]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Packed)


def packed(detector: Detector) -> bytes:
    """Serialize the whole state of a detector."""
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

    def packed_match(filled: Filled) -> _PackedFilled:
        return filled[0], [number_of(entry) for entry in filled[1]]

    packed_pending = [
        _PackedPending(end_ns, number_of(last), packed_match(filled) if filled else None, is_cut)
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
            packed_pending,
            [packed_match(each) for each in endings.reported],
            [number_of(entry) for entry in endings.crowded],
            endings.times,
            [
                (number_of(entry), [packed_match(each) for each in matches_of_entry])
                for entry, matches_of_entry in detector.ended
            ],
        )
    )


def restored(
    scheme: PatternScheme, data: bytes, allowance: StepAllowance | None = None
) -> Detector:
    """Create a detector that continues from serialized state."""
    try:
        state = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteError(f"invalid detector state: {error}") from None
    if state.version != PACKED_VERSION:
        raise RemoteError(
            f"detector state has version {state.version}; this version reads {PACKED_VERSION}"
        )
    if state.pattern != scheme.text:
        raise RemoteError("detector state belongs to another pattern")
    if state.matches_max != scheme.limits.pattern_matches_max:
        raise RemoteError(
            f"detector state was written with pattern_matches_max {state.matches_max}, but it is"
            f" {scheme.limits.pattern_matches_max} now; set pattern_matches_max as before"
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
        return each[0], tuple([entries[index] for index in each[1]])

    detector.endings.put_back(
        [filled_of(each) for each in state.reported],
        [entries[each] for each in state.crowded],
        state.crowded_times,
    )
    detector.put_ended(
        [
            PendingEnd(entries[index], [filled_of(each) for each in matches_of_entry])
            for index, matches_of_entry in state.ended
        ]
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
    """Process events and optionally advance the watermark; b"" is the initial state."""
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
    """Reject counts and indices that are out of range."""
    count = len(state.events)
    if state.kept_count + state.waiting_count > count:
        raise RemoteError("detector state lacks events")
    if len({(event.stream, event.tick) for event, _ in state.events}) < count:
        raise RemoteError("detector state has a duplicate event")
    if any(parts >> len(scheme.names) for _, parts in state.events):
        raise RemoteError("detector state has events of parts that the pattern lacks")
    for each in state.pending:
        if (each.filled is None) != scheme.is_choosing:
            raise RemoteError("detector state has a match of another policy")
    matches = [each.filled for each in state.pending if each.filled]
    matches += [
        *state.reported,
        *(filled for _, matches_of_entry in state.ended for filled in matches_of_entry),
    ]
    for layout, entries in matches:
        if not _fits(scheme, layout, len(entries)):
            raise RemoteError("detector state has a match that does not fit the pattern")
        if max(entries) >= count:
            raise RemoteError("detector state lacks events of a match")
    last = [*(each.entry for each in state.pending), *state.crowded]
    if max([*last, *(index for index, _ in state.ended)], default=-1) >= count:
        raise RemoteError("detector state lacks events that matches end with")


def _fits(scheme: PatternScheme, layout: int, slots: int) -> bool:
    layouts = scheme.layouts
    return layout < len(layouts) and len(layouts[layout].alternative.parts) == slots


def _pending(number: int, each: _PackedPending, entries: list[Entry]) -> Pending:
    filled: Filled | None = None
    if each.filled is not None:
        filled = (each.filled[0], tuple(entries[index] for index in each.filled[1]))
    return each.end_ns, number, entries[each.entry], filled, each.is_cut
