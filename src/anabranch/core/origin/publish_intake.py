"""Publish intake: accepts events from clients as ticks of the log, or refuses them.

A frame of events is validated as a whole before any event is accepted. Then each event is processed
in order. A duplicate is confirmed, at once or as soon as it is synced (`publishers`). An acceptable
event is appended. Any other event is refused with a reason, as are all later events of its
incarnation in the frame.

Rules

1. Confirmations. A confirmation goes, after the sync, to every session that sent one of the events
   it covers. It is cumulative over the sequences of one publisher and incarnation. It carries the
   tick of the last event, or the newest synced tick for a duplicate, whose tick is not on record.
2. Full log. The log is full when it has `log_ticks_max` ticks or `log_bytes_max` bytes that are not
   released, or when the disk has no space. A full log refuses events. With lossy retention it
   deletes its oldest eighth instead; a full disk still refuses until deletion has freed space.
3. Unsynced events. Events are also refused when too many events, which are held in memory, wait for
   the disk.
4. Transient events. The log stores only the id of a transient event.
5. Final refusals. A refusal says whether it is final. Events beyond this broker's limits are
   refused finally, because a client that is disconnected for them would only reconnect and resend
   them; a malformed event violates the protocol. Final too are the refusals of a departing broker,
   of a publisher with the name of a sink (`batches`), of events that the session did not advertise
   (`publisher_advertisements`), and of reserved attributes, except from a join point. A code says
   whether only the event is at fault (`INVALID_EVENT`).
6. Identity. The publisher of an event is the client of the session that sends it. Any other event
   is refused before it is looked up, so a client that guesses an id learns and changes nothing. The
   rule also holds for join points, whose names no other client may have. Events of a batch do not
   take this path (`batches`).
7. Incarnations. A new incarnation is at most `incarnation_lead_s` ahead of this broker's clock
   (`publishers`).
8. Names. Publishers are kept for long, and sinks forever, so one host may add at most
   `host_publishers_max` of them in one life of the broker, not counting forgotten ones.
9. Rollback. While the origin waits for its neighbours' answers, and when its log is an old copy
   (`rollback`), every new event is refused; these refusals are not final.

State: sessions that wait for a confirmation. Safe to lose.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from anabranch.core.contract import DEPARTURE_REASON, SendClient
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.origin.ledger import CommitGroup, Ledger
from anabranch.core.origin.log_tail import AnyRecord, BlankRecord, EventRecord
from anabranch.core.origin.publisher_advertisements import PublisherAdvertisements
from anabranch.core.origin.publishers import Key, PendingConfirmations, PublishRefusal
from anabranch.core.part_requests import PartRequest
from anabranch.core.routing.contract import finished
from anabranch.model.client_frames import (
    DEPARTING,
    INVALID_EVENT,
    Confirmed,
    Publish,
    PublishRefused,
)
from anabranch.model.encoding import Envelope, decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import reserved_in
from anabranch.model.frame_parts import Datum
from anabranch.model.limits import STORED_LIMITS, Limits
from anabranch.model.names import clipped

#: An event, and a final refusal if it exceeds the limits or uses reserved attributes.
_Checked = tuple[Envelope, PublishRefusal | None]


class PublishIntake:
    """The entry to one log. See the rules at the top of this module."""

    __slots__ = (
        "_decoding_limits",
        "_host_by_new_name",
        "_host_of",
        "_ledger",
        "_limits",
        "_new_names_by_host",
        "_options",
        "_pending",
        "advertisements",
        "is_departing",
        "is_full",
        "suspension",
    )

    def __init__(
        self, ledger: Ledger, options: Options, limits: Limits, memory: FilterMemory
    ) -> None:
        self._ledger = ledger
        self._options = options
        self._limits = limits
        #: Limits for decoding refused events. Names are part of replies, which have limits.
        self._decoding_limits = replace(STORED_LIMITS, name_bytes_max=limits.name_bytes_max)
        self._pending = PendingConfirmations()
        #: The disk has no space.
        self.is_full = False
        self.is_departing = False
        #: Why events are refused temporarily (`rollback`); "" if they are not.
        self.suspension = ""
        #: The advertisements of sessions.
        self.advertisements = PublisherAdvertisements(options, limits, memory)
        #: Session → its client's host; "" if unknown.
        self._host_of: Callable[[int], str] = lambda _session: ""
        #: Host → names of publishers and sinks that it added in this life (rule 8).
        self._new_names_by_host: dict[str, int] = {}
        #: Publisher that was added in this life → host.
        self._host_by_new_name: dict[str, str] = {}

    # -- state of the broker --------------------------------------------------------------------

    def depart(self) -> None:
        """Refuse new events finally from now on."""
        self.is_departing = True

    def log_full(self, full: bool) -> None:
        self.is_full = full

    def suspend(self, reason: str) -> None:
        """Refuse new events for this reason, until it is ""."""
        self.suspension = reason

    def set_host_lookup(self, host_of: Callable[[int], str]) -> None:
        """Set the lookup from a session to its client's host."""
        self._host_of = host_of

    # -- events ---------------------------------------------------------------------------------

    def publish(
        self, now: float, session: int, frame: Publish, client: str
    ) -> Iterable[PartRequest]:
        """Process a `Publish` frame, in slices if checking it takes long."""
        checked = [self._checked(session, body) for body in frame.bodies]
        if session >= 0 and self.advertisements.is_long(session, len(checked)):
            return self._publish_in_slices(now, session, client, checked)
        outside = finished(
            self.advertisements.refusals(session, [envelope for envelope, _ in checked])
        )
        return self._publish(now, session, client, checked, outside)

    def _publish_in_slices(
        self, now: float, session: int, client: str, checked: Sequence[_Checked]
    ) -> Iterator[PartRequest]:
        envelopes = [envelope for envelope, _ in checked]
        outside = yield from self.advertisements.refusals(session, envelopes)
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
        requests: list[PartRequest] = []
        known: dict[Key, None] = {}
        refused: dict[Key, PublishRefused] = {}
        for place, (envelope, excess) in enumerate(checked):
            event_id = envelope.id
            key = (event_id.publisher, event_id.incarnation)
            if key in refused:
                continue
            is_own = event_id.publisher == client
            is_known = is_own and publishers.is_duplicate(event_id)
            if not is_own:
                excess = _wrong_publisher(event_id.publisher, client)
            elif is_known:
                known[key] = None
                if event_id.sequence > publishers.synced(key):
                    self._pending.add(session, key)
                continue
            refusal = excess or self._suspension_refusal()
            refusal = refusal or (None if is_known else publishers.refusal(event_id, clock_ns))
            is_new = event_id.publisher not in publishers
            if is_new and refusal is None:
                refusal = self.name_refusal(session)
            refusal = refusal or self._departure_refusal() or outside.get(place)
            refusal = refusal or self.room_refusal(requests)
            if refusal is not None:
                reason, is_final, begun, code = refusal
                if not is_final:
                    publishers.postpone(event_id)
                refusal_of = PublishRefused(*key, event_id.sequence, reason, is_final, begun, code)
                refused[key] = refusal_of
            else:
                if is_new:
                    self._count_new_publisher(session, event_id.publisher)
                requests += self.advertisements.published(session)
                self._take(now, session, envelope, requests)
        for key in known:
            safe = publishers.synced(key)
            if safe:
                tick = self._ledger.tail.synced
                requests.append(SendClient(session, Confirmed(*key, safe, tick)))
        requests += [SendClient(session, frame) for frame in refused.values()]
        return requests

    def _checked(self, session: int, body: bytes) -> _Checked:
        excess = None
        try:
            envelope = decode_envelope(body, self._limits)
            reserved = reserved_in(body, envelope.attributes())
            if reserved and session >= 0:
                excess = PublishRefusal(reserved, is_final=True, code=INVALID_EVENT)
        except RemoteError as error:
            # Raises again if the bytes are not an event within any limits.
            envelope = decode_envelope(body, self._decoding_limits)
            envelope.attributes()
            excess = PublishRefusal(str(error)[:1000], is_final=True, code=INVALID_EVENT)
        if envelope.id.sequence < 1:
            raise RemoteError(f"event {envelope.id} has sequence 0; sequences start at 1")
        return envelope, excess

    def _departure_refusal(self) -> PublishRefusal | None:
        if not self.is_departing:
            return None
        return PublishRefusal(DEPARTURE_REASON, is_final=True, code=DEPARTING)

    def _suspension_refusal(self) -> PublishRefusal | None:
        return PublishRefusal(self.suspension) if self.suspension else None

    def room_refusal(self, requests: list[PartRequest]) -> PublishRefusal | None:
        """Why no event can be accepted; None if one can. May add requests that free log space."""
        if self.suspension:
            return self._suspension_refusal()
        if self.is_full:
            return PublishRefusal("the log is full: the disk has no space; send again later")
        tail, options = self._ledger.tail, self._options
        if (
            tail.last - tail.synced >= options.unsynced_ticks_max
            or tail.unsynced_bytes > options.unsynced_bytes_max
        ):
            return PublishRefusal(
                "the disk is behind: too many events wait for a sync; send again later"
            )
        full = self._ledger.full_reason()
        if full:
            requests += self._ledger.delete_kept()
            full = self._ledger.full_reason()
        if full and options.retention == "lossy":
            requests += self._ledger.make_room()
            full = self._ledger.full_reason()
        if full:
            reason = f"the log is full: {full} are not released by all edges; send again later"
            return PublishRefusal(reason)
        return None

    def name_refusal(self, session: int) -> PublishRefusal | None:
        """Why a session cannot add a new name; None if it can (rule 8)."""
        host, quota = self._host_of(session), self._options.host_publishers_max
        if not host or self._new_names_by_host.get(host, 0) < quota:
            return None
        text = f"host {host} has added {quota} names of publishers and sinks, its quota"
        return PublishRefusal(
            f"{text} (host_publishers_max); publish under one of them", is_final=True
        )

    def count_new_name(self, session: int) -> None:
        host = self._host_of(session)
        if host:
            self._new_names_by_host[host] = self._new_names_by_host.get(host, 0) + 1

    def _count_new_publisher(self, session: int, name: str) -> None:
        self.count_new_name(session)
        host = self._host_of(session)
        if host:
            self._host_by_new_name[name] = host

    def publishers_forgotten(self, names: Iterable[str]) -> None:
        """These publishers no longer count for the quotas of their hosts."""
        for name in names:
            host = self._host_by_new_name.pop(name, "")
            if host:
                self._new_names_by_host[host] -= 1
                if not self._new_names_by_host[host]:
                    del self._new_names_by_host[host]

    def _take(
        self, now: float, session: int, envelope: Envelope, requests: list[PartRequest]
    ) -> None:
        self.append(now, envelope, requests)
        event_id = envelope.id
        key = (event_id.publisher, event_id.incarnation)
        self._pending.add(session, key)

    def append(self, now: float, envelope: Envelope, requests: list[PartRequest]) -> int:
        """Append an event that is the next of its publisher; returns its tick."""
        ledger = self._ledger
        time_ns = ledger.time_ns(now)
        event_id, body = envelope.id, envelope.encoded
        if envelope.control.persistence == "transient":
            record: AnyRecord = BlankRecord(time_ns, event_id)
        else:
            record = EventRecord(time_ns, body)
        requests.append(ledger.append(record, Datum(ledger.tail.last + 1, time_ns, body)))
        tick = ledger.tail.last
        ledger.publishers.record_append(event_id, tick, now)
        key = (event_id.publisher, event_id.incarnation)
        ledger.commit.add_confirmation(key, event_id.sequence, tick)
        return tick

    def session_closed(self, now: float, session: int) -> None:
        self._pending.session_closed(session)
        self.advertisements.session_closed(now, session)

    def synced(self, group: CommitGroup) -> list[PartRequest]:
        requests: list[PartRequest] = []
        for key, (sequence, tick) in group.confirmed.items():
            self._ledger.publishers.record_sync(key, sequence)
            confirmed = Confirmed(*key, sequence, tick)
            requests += [SendClient(session, confirmed) for session in self._pending.sessions(key)]
            if not self._ledger.commit.will_confirm(key):
                self._pending.remove(key)
        return requests


def _wrong_publisher(publisher: str, client: str) -> PublishRefusal:
    """The refusal of an event under a name that is not the client's (rule 6)."""
    reason = (
        f"the event names publisher {clipped(publisher)}, but this session belongs to client"
        f" {clipped(client)}; clients publish under their own name"
    )
    return PublishRefusal(reason, is_final=True)
