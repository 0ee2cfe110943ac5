"""Sinks: who commits batches into a stream, and how far each has got.

A sink is a name under which one query writes numbered batches. Its row tells of the newest of them
and is, until the batch is in the log, an *intent*: this batch consists of these tokens, whatever
anybody says later. Rules:

1. The events of a batch are published by the sink itself: its name is their publisher, the number
   of its batches so far is their incarnation, and their sequences count from 1 over the tokens in
   the order given. So the log can tell which of them it has.
2. A row tells the ticks of a batch where the records are not read at a start any more. A crash may
   keep a put and lose the appends that came with it: where a record says otherwise, the row is
   wrong, and where the log has no event of the batch, so are its ticks.
3. Nobody is forgotten, because whoever is forgotten might commit a batch again. Where a row cannot
   be read, the sink has its name still if it has published: nobody else gets it, and no batch is
   committed under it again.

Table `sinks`: sink → [query, batch, incarnation, tokens, count, done, first tick, last tick].
"""

from collections.abc import Iterable

import msgspec

from anabranch.core.catalog_recovery import rows
from anabranch.core.contract import Put, Recovered
from anabranch.core.records import AnyRecord, BlankRecord, EventRecord, decode_record
from anabranch.core.tail import STORED_LIMITS
from anabranch.core.tokens import Token
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import Count, EventId
from anabranch.model.frame_parts import Position
from anabranch.model.names import check_name

TABLE = "sinks"
INCARNATION_MAX = 1 << 62
_NAME_BYTES_MAX = 65_535

_encoder = msgspec.msgpack.Encoder()


class SinkRow(msgspec.Struct, frozen=True, array_like=True):
    """One row of `sinks`: the newest batch."""

    query: str
    batch: Count
    incarnation: Count
    #: What it consists of; when it is done, those whose rows may still be there.
    tokens: tuple[str, ...]
    #: Its events.
    count: Count
    is_done: bool = False
    #: The ticks of the first and the last event; 0 if that is not known, or there is none.
    first: Position = 0
    last: Position = 0


_decoder = msgspec.msgpack.Decoder(SinkRow)


class Waiter(msgspec.Struct, frozen=True):
    """Who wants to hear that a batch is in the log."""

    session: int
    request: int
    was_known: bool


class Work:
    """A batch that is not in the log yet, or not all of it."""

    __slots__ = (
        "appended",
        "drafts",
        "first",
        "is_intended",
        "is_lost",
        "last",
        "tokens",
        "waiting",
    )

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.drafts = [draft for token in tokens for chunk in token.chunks for draft in chunk]
        #: Whether the intent is on disk: nothing is appended before.
        self.is_intended = False
        #: Whether staged events are missing, so that it can never be done.
        self.is_lost = False
        #: Sequences up to this one are in the log, synced or not.
        self.appended = 0
        self.first = 0
        self.last = 0
        self.waiting: list[Waiter] = []

    def note(self, tick: int) -> None:
        """The next event is in the log."""
        self.appended += 1
        self.first = self.first or tick
        self.last = tick


class Sink:
    """One sink: its newest batch, and what is to be done for it."""

    __slots__ = ("name", "row", "work")

    def __init__(self, name: str, row: SinkRow, work: Work | None = None) -> None:
        self.name = name
        self.row = row
        #: None if the newest batch is done.
        self.work = work

    @property
    def key(self) -> tuple[str, int]:
        """Publisher and incarnation of its newest events."""
        return self.name, self.row.incarnation

    def put(self, row: SinkRow) -> Put:
        """This is its row from now on."""
        self.row = row
        return Put(TABLE, self.name, _encoder.encode(row))


def stored_sinks(recovered: Recovered) -> dict[str, Sink]:
    """All sinks, as the catalog has them; none has its work yet."""
    last = recovered.last_tick

    def read(name: str, value: bytes) -> Sink:
        check_name(name, "the sink", _NAME_BYTES_MAX)
        row = _decoder.decode(value)
        if row.is_done and row.last > last:
            raise ValueError(f"its batch ends with tick {row.last}, and the log with {last}")
        if row.incarnation > INCARNATION_MAX:
            raise ValueError(f"there were never {row.incarnation} batches")
        return Sink(name, row)

    return rows(recovered, TABLE, read)


def find_ticks(recovered: Recovered, sinks: Iterable[Sink]) -> dict[str, tuple[int, int]]:
    """Sink → the ticks of the first and the last record of its newest batch, of those that are
    read at a start."""
    wanted = {sink.key for sink in sinks}
    found: dict[str, tuple[int, int]] = {}
    first_tick = recovered.records_first or recovered.first_tick
    for tick, data in enumerate(recovered.records if wanted else (), first_tick):
        event_id = _id_in(decode_record(data))
        if event_id is not None and (event_id.publisher, event_id.incarnation) in wanted:
            first = tick if event_id.sequence == 1 else 0
            first = found.get(event_id.publisher, (first, 0))[0]
            found[event_id.publisher] = (first, tick)
    return found


def _id_in(record: AnyRecord) -> EventId | None:
    if isinstance(record, EventRecord):
        return decode_envelope(record.body, STORED_LIMITS).id
    return record.id if isinstance(record, BlankRecord) else None
