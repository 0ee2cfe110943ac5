"""Replays: the part of the past that an edge wants, by its filters.

An edge that has to catch up asks for what matches some filters from a tick on, and gets it in
chunks: an answer goes up to a tick, and the edge asks from there. The origin remembers nothing
between two chunks. Rules:

1. An answer examines at most `EXAMINED_MAX` ticks, and no more than one step has time for
   (`step_work_max`). It ends with the first event that fills it: at most as many events and bytes
   as were asked for. It examines one event at least, so that there is progress.
2. Everything that matches from `first` up to `through` is in the answer, or named as withheld.
3. An event with a hop limit below the distance to the edge does not exist for it.

This module keeps no state.

Prior art: catch-up streams of durable subscriptions in Gryphon (Bhola et al., DSN 2003).
"""

from collections.abc import Sequence

import msgspec

from anabranch.core.options import Options
from anabranch.core.routing.contract import CHECK_WORK
from anabranch.core.tail import STORED_LIMITS, Entry, add_hole
from anabranch.model.encoding import decode_event
from anabranch.model.errors import FilterError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import Answer, Replay
from anabranch.model.limits import Limits

EXAMINED_MAX = 4_096
FILTERS_MAX = 1_024
#: What it costs to decode an event, and one more for each so many bytes of it, which is also what a
#: filter costs that searches its texts.
_EXAMINE_WORK = 10
_WORKED_BYTES = 512
#: So much is done for one answer, however small steps are.
_LEAST_WORK = 1_000


class Wanted(msgspec.Struct, frozen=True):
    """A replay that is understood."""

    edge: str
    request: int
    filters: tuple[Filter, ...]
    events_max: int
    bytes_max: int
    #: Hops from here to the edge.
    distance: int
    time_ns: int
    #: Of one answer.
    work_max: int


def understood(
    edge: str, replay: Replay, distance: int, options: Options, limits: Limits
) -> Wanted:
    """What an edge wants, within our own bounds."""
    if len(replay.filters) > FILTERS_MAX:
        raise RemoteError(
            f"a replay has {len(replay.filters)} filters; at most {FILTERS_MAX} are allowed"
        )
    try:
        filters = tuple(Filter.parse(text, limits) for text in replay.filters)
    except FilterError as error:
        raise RemoteError(f"a replay has a filter that is none: {error}") from error
    events_max = min(max(replay.events_max, 1), options.replay_events_max)
    bytes_max = min(replay.bytes_max, options.replay_bytes_max)
    return Wanted(
        edge,
        replay.request,
        filters,
        events_max,
        bytes_max,
        distance,
        replay.time_ns,
        max(options.step_work_max, _LEAST_WORK),
    )


def answer(wanted: Wanted, first: int, entries: Sequence[Entry], head: int) -> tuple[Answer, int]:
    """What is wanted of these ticks, or the beginning of it; and the work that it took."""
    data: list[Datum] = []
    withheld: list[Hole] = []
    size = work = 0
    through = first - 1
    for tick, entry in enumerate(entries, first):
        if isinstance(entry, Datum):
            if work > wanted.work_max:
                break
            work += _EXAMINE_WORK + (1 + len(wanted.filters)) * len(entry.body) // _WORKED_BYTES
            work += CHECK_WORK * len(wanted.filters)
            if _is_wanted(wanted, entry):
                size += len(entry.body)
                if data and size > wanted.bytes_max:
                    break
                data.append(entry)
        elif entry.reason:
            add_hole(withheld, tick, entry.reason)
        through = tick
        if len(data) >= wanted.events_max:
            break
    return Answer(wanted.request, first, through, head, data, withheld), work


def _is_wanted(wanted: Wanted, datum: Datum) -> bool:
    event = decode_event(datum.body, STORED_LIMITS)
    hop_limit = event.control.hop_limit
    if hop_limit is not None and hop_limit < wanted.distance:
        return False
    return any(each.matches(event) for each in wanted.filters)
