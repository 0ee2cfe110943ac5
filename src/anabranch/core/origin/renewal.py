"""Log renewal: repairs a log that is an old copy so that its stream can continue.

A log that was restored from a backup lacks ticks that other brokers have seen. The broker detects
that and refuses events (`rollback`); renewal is the way back. It keeps valid ticks, and ensures
that no tick stands for two events. This module plans it; `store.log_repair` and the simulator,
which access the disk, perform it.

Rules

1. Ticks that the network knows and the log lacks become ticks with a lost event, as do some more
   (`spare`), because ticks may have been confirmed that no neighbour has received. Subscribers that
   have not received them get them as withheld (`lost`). The stream continues above them.
2. A broker that started while no neighbour was reachable may have appended ticks that stand for
   other events elsewhere. These *disputed* ticks become lost too, and their events are appended
   again, above. A subscriber that received them at their old ticks receives them twice.
3. Marks at disputed ticks are removed: other brokers know other vectors for them.
4. All incarnations in the log are over, because the lost part may contain more of them: a publisher
   starts a new one, and learns that the outcome of its unconfirmed events is unknown. Sinks are not
   affected: their batch numbers ascend, and show which batches are new.
5. The edge's request numbers continue above all that it can have used, so that other origins accept
   them.

This module has no state."""

from collections.abc import Iterable, Iterator

import msgspec

from anabranch.core.catalog_recovery import number_in
from anabranch.core.contract import Put, Recovered
from anabranch.core.edge.cursors import RUN_KEY, RUN_TABLE
from anabranch.core.edge.state import RUN_MAX
from anabranch.core.origin import batches, ledger, publishers, retention, rollback
from anabranch.core.origin.log_tail import (
    LOST_PUBLISHER,
    BlankRecord,
    EventRecord,
    decode_record,
    encode_record,
)
from anabranch.core.origin.retention import Catalog
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import LocalError
from anabranch.model.event import EventId
from anabranch.model.limits import STORED_LIMITS

#: Ticks that are skipped above the newest known one.
SPARE_TICKS = 10_000
#: Upper limit of lost ticks, which are written one by one.
LOST_TICKS_MAX = 1 << 24
#: An upper bound of an edge's starts between a backup and the present.
_RUN_LEAP = 1 << 16

_encoder = msgspec.msgpack.Encoder()


class LogRenewal(msgspec.Struct, frozen=True, array_like=True):
    """The plan of a renewal."""

    #: The newest tick of the log.
    last: int
    #: Range of ticks that stand for other events elsewhere; empty if the first is higher.
    disputed_first: int
    disputed_last: int
    #: The stream continues after this tick, with the events of disputed ticks.
    base: int

    @property
    def disputed(self) -> range:
        return range(self.disputed_first, self.disputed_last + 1)


def renewal_plan(
    catalog: Catalog, first: int, last: int, *, above: int, spare: int
) -> LogRenewal | None:
    """The plan for a log with ticks `first` to `last`; None if nothing requires a renewal.

    `above` is a tick that the operator has seen elsewhere; 0 if there is none."""
    verdict, alone = rollback.stored(_recovered(catalog))
    if verdict is None and not above:
        return None
    known = max(above, 0 if verdict is None else verdict.newest)
    start = alone if verdict is None else verdict.start
    base = max(known, last) + spare
    if base - last > LOST_TICKS_MAX:
        raise LocalError(
            f"{base - last:,} ticks would be lost, more than {LOST_TICKS_MAX:,}; check who has seen"
            f" tick {known}, or remove the broker from the network and add it under a new name"
        )
    disputed_first = max(last if start is None else start, first - 1) + 1
    return LogRenewal(last, disputed_first, min(known, last), base)


def lost_record(tick: int, time_ns: int) -> bytes:
    return encode_record(BlankRecord(time_ns, EventId(LOST_PUBLISHER, 1, tick)))


def reappended(record: bytes, time_ns: int) -> bytes | None:
    """The event of a disputed tick as a new record; None if the tick has no stored event."""
    found = decode_record(record)
    if not isinstance(found, EventRecord):
        return None
    return encode_record(EventRecord(time_ns, found.body))


def final_puts(renewal: LogRenewal, catalog: Catalog, recent: Iterable[bytes]) -> list[Put]:
    """Catalog updates that complete a renewal. `recent` are the records that the catalog does not
    cover, before the renewal (`ledger.first_needed`)."""
    return [
        *_ended_publishers(catalog, recent),
        *_without_marks(renewal, catalog),
        *_later_run(catalog),
        Put(rollback.TABLE, rollback.RENEWED, b"%d" % renewal.base),
        Put(rollback.TABLE, rollback.ROLLED_BACK, None),
        Put(rollback.TABLE, rollback.ALONE, None),
    ]


def _recovered(catalog: Catalog) -> Recovered:
    return Recovered({table: dict(rows) for table, rows in catalog.items()})


def _later_run(catalog: Catalog) -> list[Put]:
    """Rule 5. If the number cannot be read, the next start takes one from the clock."""
    try:
        run = number_in(catalog.get(RUN_TABLE, {}).get(RUN_KEY, b"0"), RUN_MAX)
    except ValueError:
        return []
    return [Put(RUN_TABLE, RUN_KEY, b"%d" % min(run + _RUN_LEAP, RUN_MAX))]


def _ended_publishers(catalog: Catalog, recent: Iterable[bytes]) -> list[Put]:
    """Rule 4: begin a higher incarnation without an event."""
    rows, _ = publishers.stored(_recovered(catalog))
    places = {name: (row.incarnation, row.sequence) for name, row in rows.items()}
    for event_id in _ids(recent):
        place = (event_id.incarnation, event_id.sequence)
        places[event_id.publisher] = max(places.get(event_id.publisher, (0, 0)), place)
    own = {LOST_PUBLISHER, *catalog.get(batches.TABLE, {})}
    return [
        Put(publishers.TABLE, name, _encoder.encode((incarnation + 1, 0)))
        for name, (incarnation, sequence) in places.items()
        if name not in own and sequence
    ]


def _ids(records: Iterable[bytes]) -> Iterator[EventId]:
    for data in records:
        record = decode_record(data)
        if isinstance(record, EventRecord):
            yield decode_envelope(record.body, STORED_LIMITS).id
        elif isinstance(record, BlankRecord):
            yield record.id


def _without_marks(renewal: LogRenewal, catalog: Catalog) -> Iterator[Put]:
    """Remove marks at disputed ticks (rule 3)."""
    for tick in catalog.get(retention.MARKS, {}):
        if tick.isdecimal() and int(tick) in renewal.disputed:
            yield Put(retention.MARKS, tick, None)
    beginning = ledger.stored_beginning(catalog)
    if beginning.mark in renewal.disputed:
        unmarked = msgspec.structs.replace(beginning, mark=0, vector={})
        yield Put(ledger.TABLE, ledger.KEY, _encoder.encode(unmarked))
