"""Reconstruct publishers without a trace from the logs.

A run can be checked even if some publishers did not write a trace.

Rules

1. A *life* of a publisher is one of its incarnations. It is traced if a trace records the
   publication of any of its events; that record is written before the event is sent.
2. Events of untraced lives are taken from the logs: published at the time of their tick, with the
   logged attributes, by a publisher that does not wait for confirmations. So all guarantees to
   subscribers are checked for them. Confirmations, and whether the events were published at all,
   are not checked, and the verdict must note it.
3. An event whose content is no longer in any log is left out, with its deliveries.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from anabranch.check import history as saw
from anabranch.client.tracing import is_optional, written
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.devnet.broker_logs import state_directories
from anabranch.model.encoding import decode_event
from anabranch.model.event import Event
from anabranch.model.limits import STORED_LIMITS
from anabranch.store.log import segment_paths
from anabranch.store.log_view import locate, scan_steadily

#: Publisher and incarnation.
Life = tuple[str, int]
_NS_PER_S = 1e9


def untraced_lives(history: Iterable[saw.Record]) -> Counter[Life]:
    """Untraced life → the number of its logged events."""
    traced: set[Life] = set()
    logged: Counter[Life] = Counter()
    for record in history:
        if isinstance(record, saw.Published):
            traced.add((record.publisher, record.incarnation))
        elif isinstance(record, saw.Logged):
            logged[record.publisher, record.incarnation] += 1
    return Counter({life: count for life, count in logged.items() if life not in traced})


def with_untraced(
    history: list[saw.Record], directories: Iterable[Path], lives: Iterable[Life]
) -> list[saw.Record]:
    """Add the events of these lives from the logs below these directories to a history."""
    wanted = set(lives)
    found = {
        (event.publisher, event.incarnation, event.sequence): event
        for directory in directories
        for state in state_directories(directory)
        for event in _events_in(state, wanted)
    }
    unreadable = {
        _id_of(record)
        for record in history
        if isinstance(record, saw.Logged) and (record.publisher, record.incarnation) in wanted
    } - found.keys()
    kept = [
        record
        for record in history
        if not (isinstance(record, saw.Logged | saw.Delivered) and _id_of(record) in unreadable)
    ]
    gone = [saw.Abandoned(0.0, *life) for life in sorted(wanted)]
    return [*found.values(), *gone, *kept]


def _id_of(record: saw.Logged | saw.Delivered) -> tuple[str, int, int]:
    return (record.publisher, record.incarnation, record.sequence)


def _events_in(state: Path, lives: set[Life]) -> Iterator[saw.Published]:
    """The events of these lives whose content is in the log of a broker."""
    place = locate(state)
    for first_tick, path in segment_paths(place.directory):
        try:
            records = scan_steadily(path, first_tick, place.owner).records
        except FileNotFoundError:
            continue  # released since it was listed
        for data in records:
            record = decode_record(data)
            if isinstance(record, EventRecord):
                event = decode_event(record.body, STORED_LIMITS)
                if event.id is not None and (event.id.publisher, event.id.incarnation) in lives:
                    yield _published(event, record.time_ns / _NS_PER_S, place.broker)


def _published(event: Event, time: float, broker: str) -> saw.Published:
    assert event.id is not None
    name = (event.id.publisher, event.id.incarnation, event.id.sequence)
    return saw.Published(time, *name, written(event), broker, is_optional(event))
