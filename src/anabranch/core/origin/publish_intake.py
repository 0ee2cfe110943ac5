"""The intake: events from clients become ticks of the log, or are refused.

A frame of events is looked at as a whole before any of it is taken. Then, event by event: one that
is known is confirmed, again or as soon as it is safe (see `publishers`); one that fits is appended;
any other is refused with a reason, and so is what follows it in its incarnation. Rules:

1. A confirmation goes to every session that sent something of what it confirms, when that is
   synced. It counts in sequences of one publisher and incarnation, and is cumulative.
2. A log is full when it has `log_ticks_max` ticks or `log_bytes_max` bytes that are not released,
   or when the disk says so. Then events are refused. With lossy retention the oldest eighth is
   forgotten instead; a full disk refuses nevertheless, until it says that deleting has helped.
3. Too many events that wait for the disk are refused as well; they are in memory.
4. Of a transient event the log gets the id only.
5. A refusal says whether it is final. Events beyond this broker's limits are refused for ever,
   since a client that was cut for them would only come back with them; what is no event at all
   breaks the protocol. A broker that departs refuses for ever too, and so does one that has a sink
   (`staging`) of the publisher's name. Nor is anything taken that its session did not advertise
   (`offers`), nor attributes that are the network's own, but from a join point.
6. The publisher of an event is the client of the session that sends it. Any other event is refused
   before it is looked up, so a client that guesses an id learns nothing and changes nothing. The
   rule holds for join points too, whose names no other client may have; the events of a batch do
   not come this way (`batches`).
7. A new incarnation leads this broker's clock by at most `incarnation_lead_s` (`publishers`).
8. Names are remembered for ever, so one host brings at most `host_publishers_max` new ones in a
   life of the broker.
9. While the origin asks its neighbours, and when its log is an old copy (`rollback`), every new
   event is refused, and none of these refusals is final.

State: who waits for a confirmation. Safe to lose.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from anabranch.core import departure
from anabranch.core.contract import SendClient
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.origin.ledger import CommitGroup, Ledger
from anabranch.core.origin.log_tail import AnyRecord, BlankRecord, EventRecord
from anabranch.core.origin.publisher_advertisements import PublisherAdvertisements
from anabranch.core.origin.publishers import Key, PendingConfirmations, PublishRefusal
from anabranch.core.part_requests import PartRequest
from anabranch.core.routing.contract import finished
from anabranch.model.client_frames import DEPARTING, Confirmed, Publish, PublishRefused
from anabranch.model.encoding import Envelope, decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import reserved_in
from anabranch.model.frame_parts import Datum
from anabranch.model.limits import STORED_LIMITS, Limits
from anabranch.model.names import clipped

#: An event, and whether it is beyond the limits, or not a client's to publish.
_Checked = tuple[Envelope, PublishRefusal | None]


class PublishIntake:
    """The way into one log. See the rules at the top of this module."""

    __slots__ = (
        "_ledger",
        "_limits",
        "_new_names",
        "_options",
        "_waiting",
        "_widest",
        "hindrance",
        "host_of",
        "is_departing",
        "is_full",
        "offers",
    )

    def __init__(
        self, ledger: Ledger, options: Options, limits: Limits, memory: FilterMemory
    ) -> None:
        self._ledger = ledger
        self._options = options
        self._limits = limits
        #: Names go into answers, which have bounds of their own.
        self._widest = replace(STORED_LIMITS, name_bytes_max=limits.name_bytes_max)
        self._waiting = PendingConfirmations()
        #: The disk has no room.
        self.is_full = False
        self.is_departing = False
        #: Why nothing is taken for the time being (`rollback`); "" if it is.
        self.hindrance = ""
        #: What sessions say that they will publish.
        self.offers = PublisherAdvertisements(options, limits, memory)
        #: Session → where its client connects from; "" if that is not known.
        self.host_of: Callable[[int], str] = lambda _session: ""
        #: Host → names of publishers and sinks that it brought in this life (rule 8).
        self._new_names: dict[str, int] = {}

    def publish(
        self, now: float, session: int, frame: Publish, client: str
    ) -> Iterable[PartRequest]:
        """A client publishes events. They are looked at in slices if that takes long."""
        checked = [self._checked(session, body) for body in frame.bodies]
        if session >= 0 and self.offers.is_long(session, len(checked)):
            return self._publish_slowly(now, session, client, checked)
        outside = finished(self.offers.refusals(session, [envelope for envelope, _ in checked]))
        return self._publish(now, session, client, checked, outside)

    def _publish_slowly(
        self, now: float, session: int, client: str, checked: Sequence[_Checked]
    ) -> Iterator[PartRequest]:
        envelopes = [envelope for envelope, _ in checked]
        outside = yield from self.offers.refusals(session, envelopes)
        yield from self._publish(now, session, client, checked, outside)

    def _publish(
        self,
        now: float,
        session: int,
        client: str,
        checked: Sequence[_Checked],
        outside: Mapping[int, PublishRefusal],
    ) -> list[PartRequest]:
        publishers = self._ledger.publishers
        clock_ns = self._ledger.time_ns(now)
        asks: list[PartRequest] = []
        known: dict[Key, None] = {}
        refused: dict[Key, PublishRefused] = {}
        for place, (envelope, excess) in enumerate(checked):
            event_id = envelope.id
            key = (event_id.publisher, event_id.incarnation)
            if key in refused:
                continue
            is_own = event_id.publisher == client
            is_known = is_own and publishers.knows(event_id)
            if not is_own:
                excess = _another(event_id.publisher, client)
            elif is_known:
                known[key] = None
                if event_id.sequence > publishers.safe(key):
                    self._waiting.add(session, key)
                continue
            refusal = excess or self._hindered()
            refusal = refusal or (None if is_known else publishers.refusal(event_id, clock_ns))
            is_new = event_id.publisher not in publishers
            if is_new and refusal is None:
                refusal = self.no_name(session)
            refusal = refusal or self._departed() or outside.get(place)
            refusal = refusal or self.no_room(asks)
            if refusal is not None:
                reason, is_final, begun, code = refusal
                if not is_final:
                    publishers.postpone(event_id)
                refusal_of = PublishRefused(*key, event_id.sequence, reason, is_final, begun, code)
                refused[key] = refusal_of
            else:
                if is_new:
                    self.brings(session)
                asks += self.offers.published(session)
                self._take(now, session, envelope, asks)
        for key in known:
            safe = publishers.safe(key)
            if safe:
                asks.append(SendClient(session, Confirmed(*key, safe)))
        asks += [SendClient(session, frame) for frame in refused.values()]
        return asks

    def _checked(self, session: int, body: bytes) -> _Checked:
        excess = None
        try:
            envelope = decode_envelope(body, self._limits)
            reserved = reserved_in(body, envelope.attributes())
            if reserved and session >= 0:
                excess = PublishRefusal(reserved, is_final=True)
        except RemoteError as error:
            # Raises again if it is no event for anybody.
            envelope = decode_envelope(body, self._widest)
            envelope.attributes()
            excess = PublishRefusal(str(error)[:1000], is_final=True)
        if envelope.id.sequence < 1:
            raise RemoteError(f"event {envelope.id} has sequence 0; the first one has 1")
        return envelope, excess

    def _departed(self) -> PublishRefusal | None:
        if not self.is_departing:
            return None
        return PublishRefusal(departure.REASON, is_final=True, code=DEPARTING)

    def _hindered(self) -> PublishRefusal | None:
        return PublishRefusal(self.hindrance) if self.hindrance else None

    def no_room(self, asks: list[PartRequest]) -> PublishRefusal | None:
        """Why no event can be taken; None if one can. There may be room to be made for it."""
        if self.hindrance:
            return self._hindered()
        if self.is_full:
            return PublishRefusal("the log is full: the disk has no room; send again later")
        tail, options = self._ledger.tail, self._options
        if (
            tail.last - tail.synced >= options.unsynced_ticks_max
            or tail.unsynced_bytes > options.unsynced_bytes_max
        ):
            return PublishRefusal(
                "the disk is behind: too many events wait for it; send again later"
            )
        full = self._ledger.why_full()
        if full:
            asks += self._ledger.forget_kept()
            full = self._ledger.why_full()
        if full and options.retention == "lossy":
            asks += self._ledger.make_room()
            full = self._ledger.why_full()
        if full:
            reason = f"the log is full: {full} are not released by all edges; send again later"
            return PublishRefusal(reason)
        return None

    def no_name(self, session: int) -> PublishRefusal | None:
        """Why a session cannot bring a new name; None if it can (rule 8)."""
        host, quota = self.host_of(session), self._options.host_publishers_max
        if not host or self._new_names.get(host, 0) < quota:
            return None
        text = f"host {host} has brought {quota} names of publishers and sinks, its quota"
        return PublishRefusal(
            f"{text} (host_publishers_max); publish under one of them", is_final=True
        )

    def brings(self, session: int) -> None:
        """A session brings a new name."""
        host = self.host_of(session)
        if host:
            self._new_names[host] = self._new_names.get(host, 0) + 1

    def _take(self, now: float, session: int, envelope: Envelope, asks: list[PartRequest]) -> None:
        self.append(now, envelope, asks)
        event_id = envelope.id
        key = (event_id.publisher, event_id.incarnation)
        self._waiting.add(session, key)

    def append(self, now: float, envelope: Envelope, asks: list[PartRequest]) -> int:
        """An event that is the next of its publisher becomes a tick; which."""
        ledger = self._ledger
        time_ns = ledger.time_ns(now)
        event_id, body = envelope.id, envelope.encoded
        if envelope.control.persistence == "transient":
            record: AnyRecord = BlankRecord(time_ns, event_id)
        else:
            record = EventRecord(time_ns, body)
        asks.append(ledger.append(record, Datum(ledger.tail.last + 1, time_ns, body)))
        ledger.publishers.take(event_id)
        key = (event_id.publisher, event_id.incarnation)
        confirmed = ledger.commit.gathering.confirmed
        confirmed[key] = max(confirmed.get(key, 0), event_id.sequence)
        return ledger.tail.last

    def left(self, now: float, session: int) -> None:
        """A session is over."""
        self._waiting.left(session)
        self.offers.left(now, session)

    def synced(self, batch: CommitGroup) -> list[PartRequest]:
        """Confirm what is safe now."""
        asks: list[PartRequest] = []
        gathering = self._ledger.commit.gathering.confirmed
        for key, sequence in batch.confirmed.items():
            self._ledger.publishers.make_safe(key, sequence)
            confirmed = Confirmed(*key, sequence)
            asks += [SendClient(session, confirmed) for session in self._waiting.sessions(key)]
            if key not in gathering:
                self._waiting.satisfied(key)
        return asks


def _another(publisher: str, client: str) -> PublishRefusal:
    """Rule 6."""
    reason = (
        f"the event is of publisher {clipped(publisher)}, but this session is of client"
        f" {clipped(client)}; a client publishes under its own name"
    )
    return PublishRefusal(reason, is_final=True)
