"""Renewal: what a log that is an old copy has to look like so that its stream can go on.

A log that was restored from a backup lacks ticks that other brokers have seen. The broker finds
that out and refuses events (`rollback`); this is the way back. It keeps what is good, and makes
sure that no tick stands for two events. Whoever has the disk carries it out (`store.log_repair`,
and the simulator). Rules:

1. Ticks that the network knows and the log lacks become ticks whose event is lost, and so do some
   more (`spare`), because ticks may have been confirmed that no neighbour has heard of. Subscribers
   that have not got them are told that they are withheld (`lost`). The stream goes on above.
2. A broker that started although nobody could be asked may have made ticks that stand for other
   events elsewhere. These *disputed* ticks become lost too, and their events are appended again,
   above. A subscriber that got them at their old ticks gets them twice.
3. Marks at disputed ticks go: other brokers know other vectors for them.
4. Incarnations of publishers that the log knows are over, since the lost part of the log may have
   more of them: a publisher opens a new one, and is told that the fate of what it had not had
   confirmed is unknown. Sinks are left alone: their batches ascend, and say by themselves what is
   new.
5. The edge's requests are numbered above all that it can have made, so that other origins hear it.

This module keeps no state."""

from collections.abc import Iterable, Iterator

import msgspec

from anabranch.core.catalog_recovery import number_in
from anabranch.core.contract import Put, Recovered
from anabranch.core.edge.cursors import RUN_KEY, RUN_TABLE
from anabranch.core.edge.subscriptions import RUN_MAX
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

#: Ticks that are left out above all that is known.
SPARE_TICKS = 10_000
#: More lost ticks than this are not written one by one.
LOST_TICKS_MAX = 1 << 24
#: An edge starts fewer times than this between a backup and the present.
_RUN_LEAP = 1 << 16

_encoder = msgspec.msgpack.Encoder()


class LogRenewal(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of a log."""

    #: The newest tick of the log.
    last: int
    #: Ticks from here to there stand for other events elsewhere; none if the first is higher.
    disputed_first: int
    disputed_last: int
    #: The stream goes on after this tick, with the events of disputed ticks.
    base: int

    @property
    def disputed(self) -> range:
        """The disputed ticks."""
        return range(self.disputed_first, self.disputed_last + 1)


def planned(
    catalog: Catalog, first: int, last: int, *, above: int, spare: int
) -> LogRenewal | None:
    """How to renew a log that has ticks `first` to `last`; None if nothing says that it has to be.
    `above` is a tick that the operator knows of, 0 if he knows none."""
    verdict, alone = rollback.stored(_recovered(catalog))
    if verdict is None and not above:
        return None
    known = max(above, 0 if verdict is None else verdict.newest)
    start = alone if verdict is None else verdict.start
    base = max(known, last) + spare
    if base - last > LOST_TICKS_MAX:
        raise LocalError(
            f"{base - last:,} ticks would be lost, more than {LOST_TICKS_MAX:,}; check who knows"
            f" tick {known}, or take the broker out of the network and add it under a new name"
        )
    disputed_first = max(last if start is None else start, first - 1) + 1
    return LogRenewal(last, disputed_first, min(known, last), base)


def lost_record(tick: int, time_ns: int) -> bytes:
    """The record of a tick whose event is lost."""
    return encode_record(BlankRecord(time_ns, EventId(LOST_PUBLISHER, 1, tick)))


def again(record: bytes, time_ns: int) -> bytes | None:
    """The event of a disputed tick as a new record; None if there is none that is kept."""
    found = decode_record(record)
    if not isinstance(found, EventRecord):
        return None
    return encode_record(EventRecord(time_ns, found.body))


def final_puts(renewal: LogRenewal, catalog: Catalog, recent: Iterable[bytes]) -> list[Put]:
    """What the catalog needs when the log is renewed. `recent` are the records that the catalog
    does not speak for, as they were before (`ledger.first_needed`)."""
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
    """Rule 5. Where the number cannot be read, the next start takes one from the clock."""
    try:
        run = number_in(catalog.get(RUN_TABLE, {}).get(RUN_KEY, b"0"), RUN_MAX)
    except ValueError:
        return []
    return [Put(RUN_TABLE, RUN_KEY, b"%d" % min(run + _RUN_LEAP, RUN_MAX))]


def _ended_publishers(catalog: Catalog, recent: Iterable[bytes]) -> list[Put]:
    """Rule 4: a higher incarnation has begun, without an event."""
    places, _ = publishers.stored(_recovered(catalog))
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
    """Rule 3."""
    for tick in catalog.get(retention.MARKS, {}):
        if tick.isdecimal() and int(tick) in renewal.disputed:
            yield Put(retention.MARKS, tick, None)
    beginning = ledger.stored_beginning(catalog)
    if beginning.mark in renewal.disputed:
        unmarked = msgspec.structs.replace(beginning, mark=0, vector={})
        yield Put(ledger.TABLE, ledger.KEY, _encoder.encode(unmarked))
