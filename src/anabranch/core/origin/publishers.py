"""Publishers: deduplication of published events.

A publisher sends an event until it is confirmed, over new sessions and after crashes of either
side. So the origin records, per publisher, the newest incarnation and the highest accepted
sequence.

Rules

1. Sequences. Within an incarnation, sequences are 1, 2, 3 … An event with the next sequence is new.
   An event with a lower one is a *duplicate*: it is confirmed again and not appended again. An
   event that leaves a gap is refused, and the refusal names the expected sequence.
2. Incarnations. A higher incarnation ends all lower ones: their events are refused from then on. It
   begins with sequence 1, and only when one of its events is accepted; a refused event changes
   nothing. It is a time in ns of the client's clock, and may be ahead of this broker's clock by at
   most `incarnation_lead_s`: otherwise one event with the highest possible number would be the last
   of its publisher. A higher one is refused temporarily, with both clocks in the reason. A log may
   contain a higher one nevertheless, from before this rule or from a wrong clock. That incarnation
   continues; no other can begin until the clock has caught up, and the refusal names the remedy.
3. Only synced events are confirmed.
4. Only synced events go into the catalog. A crash may keep a put and lose an earlier append; a put
   that ran ahead would turn the lost event into a duplicate.
5. Publishers are never deleted, because a deleted publisher might repeat an event. At
   `publishers_max`, new publishers are refused.
6. An unreadable row is restored from the log if the log has an event of the publisher: the last one
   there is the last one accepted. Otherwise the incarnation of the current time has begun, and all
   lower ones are over: no event is accepted twice, and pending events of an older incarnation are
   refused, whether they were accepted before or not.
7. A refusal is *final* if resending can never help: the incarnation is over, or there is no space
   for the publisher. A gap is not final: the missing events may be in flight.
8. In a renewed log, an incarnation that does not begin with sequence 1 began in the lost part. Its
   accepted events are unknown, so it is over.

State: restored from the records of the log and, for deleted records, from the catalog (table
`publishers`), to which `checkpoint` writes it before they are deleted. Pending confirmations are
safe to lose: sessions end with the process.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from anabranch.core.catalog_recovery import decoded, set_aside
from anabranch.core.contract import DamagedRecord, Put, Recovered
from anabranch.model.errors import EventError
from anabranch.model.event import Count, EventId, utc_text
from anabranch.model.names import check_name

#: Publisher and incarnation, the scope of a confirmation.
Key = tuple[str, int]
#: Incarnation and sequence, in the order of publication.
PublishPosition = tuple[int, int]

TABLE = "publishers"
#: Incarnations on record because their first event was refused.
POSTPONED_MAX = 1_024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Count, Count])
#: Limit of a publisher's name, whatever the limits were when it was accepted.
_NAME_BYTES_MAX = 65_535


def stored(recovered: Recovered) -> tuple[dict[str, PublishPosition], list[DamagedRecord]]:
    """Publisher → its last synced event in the catalog; and the rows that cannot be read."""
    return decoded(recovered, TABLE, _read)


def _read(key: str, value: bytes) -> PublishPosition:
    check_name(key, "the publisher", _NAME_BYTES_MAX)
    return _decoder.decode(value)


class PublishRefusal(NamedTuple):
    """Why an event is refused."""

    reason: str
    #: Whether resending can never help.
    is_final: bool = False
    #: The incarnation that superseded the event's; 0 if that is not the reason.
    begun: int = 0
    #: The kind of the reason, for programs; may be empty.
    code: str = ""


class _Publisher:
    __slots__ = ("appended", "incarnation", "stored", "synced")

    def __init__(self, place: PublishPosition, stored: PublishPosition) -> None:
        self.incarnation, self.appended = place
        #: Invariant: stored ≤ synced ≤ (incarnation, appended).
        self.synced = place
        self.stored = stored


class Publishers:
    """All publishers of one origin. See the rules at the top of this module."""

    __slots__ = (
        "_is_renewed",
        "_known",
        "_lead_ns",
        "_postponed",
        "_publishers_max",
        "_unstored",
    )

    def __init__(
        self,
        stored: Mapping[str, PublishPosition],
        publishers_max: int,
        incarnation_lead_s: float,
        *,
        is_renewed: bool = False,
    ) -> None:
        self._is_renewed = is_renewed
        #: In a renewed log, new incarnations whose first event was refused temporarily.
        self._postponed: dict[Key, None] = {}
        self._known = {name: _Publisher(place, place) for name, place in stored.items()}
        self._publishers_max = publishers_max
        self._lead_ns = int(incarnation_lead_s * 1e9)
        #: Publishers with synced events that are not stored yet.
        self._unstored: dict[str, None] = {}

    def recover(self, event_id: EventId) -> None:
        """Record an event that the log contains. Called in the order of the log."""
        place = (event_id.incarnation, event_id.sequence)
        publisher = self._known.get(event_id.publisher)
        if publisher is None:
            self._known[event_id.publisher] = _Publisher(place, (0, 0))
        elif publisher.synced < place:
            publisher.incarnation, publisher.appended = place
            publisher.synced = place
        else:
            return
        self._unstored[event_id.publisher] = None

    def replace_lost(self, recovered: Recovered, lost: Iterable[DamagedRecord], now: float) -> None:
        """Set unreadable rows aside, after the log was read (rule 6)."""
        for damaged in lost:
            instead = None
            if damaged.key not in self._known and _is_name(damaged.key):
                place = (int(now * 1e9), 0)
                self._known[damaged.key] = _Publisher(place, place)
                instead = _encoder.encode(place)
            set_aside(recovered, damaged, instead)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def is_duplicate(self, event_id: EventId) -> bool:
        publisher = self._known.get(event_id.publisher)
        return (
            publisher is not None
            and event_id.incarnation == publisher.incarnation
            and event_id.sequence <= publisher.appended
        )

    def refusal(self, event_id: EventId, clock_ns: int) -> PublishRefusal | None:
        """Why this event, which is not a duplicate, is refused; None if it is acceptable."""
        publisher = self._known.get(event_id.publisher)
        highest = clock_ns + self._lead_ns
        begun = 0 if publisher is None else publisher.incarnation
        if event_id.incarnation > max(begun, highest):
            return PublishRefusal(
                f"incarnation {event_id.incarnation} ({utc_text(event_id.incarnation)}) leads this"
                f" broker's clock ({utc_text(clock_ns)}) by more than {self._lead_ns / 1e9:g} s;"
                " correct the wrong clock and restart its broker or client"
            )
        if publisher is None:
            expected = 1
            if len(self._known) >= self._publishers_max:
                return PublishRefusal(
                    f"{self._publishers_max} publishers are on record here, the maximum"
                    " (publishers_max); publish at another broker",
                    is_final=True,
                )
        elif event_id.incarnation < begun:
            advice = "open a higher one"
            if begun >= highest:
                advice = (
                    f"that is {utc_text(begun)}, and this broker's clock is at"
                    f" {utc_text(clock_ns)}, so no higher one can begin here: correct the clock,"
                    " publish at another broker, or take another name"
                )
            return PublishRefusal(
                f"incarnation {event_id.incarnation} is over, {begun} has begun; {advice}",
                is_final=True,
                begun=begun,
            )
        else:
            newer = event_id.incarnation > begun
            expected = 1 if newer else publisher.appended + 1
        if event_id.sequence != expected:
            if self._is_lost(event_id, expected):
                return PublishRefusal(
                    f"incarnation {event_id.incarnation} began before the log was renewed, in its"
                    " lost part; open a higher one",
                    is_final=True,
                    begun=event_id.incarnation,
                )
            return PublishRefusal(
                f"sequence {expected} is expected before {event_id.sequence}; send it first"
            )
        return None

    def _is_lost(self, event_id: EventId, expected: int) -> bool:
        """Whether the incarnation began in the lost part of a renewed log (rule 8)."""
        key = (event_id.publisher, event_id.incarnation)
        return self._is_renewed and expected == 1 and key not in self._postponed

    def postpone(self, event_id: EventId) -> None:
        """Record that this event was refused temporarily."""
        if self._is_renewed and event_id.sequence == 1:
            if len(self._postponed) >= POSTPONED_MAX:
                del self._postponed[next(iter(self._postponed))]
            self._postponed[event_id.publisher, event_id.incarnation] = None

    def record_append(self, event_id: EventId) -> None:
        publisher = self._known.get(event_id.publisher)
        if publisher is None:
            publisher = self._known[event_id.publisher] = _Publisher((0, 0), (0, 0))
        place = (publisher.incarnation, publisher.appended)
        publisher.incarnation, publisher.appended = max(
            place, (event_id.incarnation, event_id.sequence)
        )

    def record_sync(self, key: Key, sequence: int) -> None:
        """Record that this incarnation is synced up to this sequence."""
        name, incarnation = key
        publisher = self._known[name]
        publisher.synced = max(publisher.synced, (incarnation, sequence))
        self._unstored[name] = None

    def appended(self, key: Key) -> int:
        """The last appended sequence of this incarnation; 0 if it is not the current one."""
        publisher = self._known.get(key[0])
        return (
            publisher.appended if publisher is not None and publisher.incarnation == key[1] else 0
        )

    def synced(self, key: Key) -> int:
        """The last synced sequence of this incarnation; 0 if it is not the current one."""
        publisher = self._known.get(key[0])
        incarnation, sequence = (0, 0) if publisher is None else publisher.synced
        return sequence if incarnation == key[1] else 0

    def checkpoint(self) -> list[Put]:
        """Puts that must precede the deletion of records."""
        puts = []
        for name in self._unstored:
            publisher = self._known[name]
            if publisher.stored < publisher.synced:
                puts.append(Put(TABLE, name, _encoder.encode(publisher.synced)))
                publisher.stored = publisher.synced
        self._unstored.clear()
        return puts


def _is_name(text: str) -> bool:
    try:
        check_name(text, "the publisher", _NAME_BYTES_MAX)
    except EventError:
        return False
    return True


class PendingConfirmations:
    """Sessions that wait for confirmations."""

    __slots__ = ("_keys", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[Key, dict[int, None]] = {}
        self._keys: dict[int, dict[Key, None]] = {}

    def add(self, session: int, key: Key) -> None:
        sessions = self._sessions.setdefault(key, {})
        if session in sessions:
            return
        sessions[session] = None
        self._keys.setdefault(session, {})[key] = None

    def session_closed(self, session: int) -> None:
        for key in self._keys.pop(session, ()):
            del self._sessions[key][session]
            if not self._sessions[key]:
                del self._sessions[key]

    def sessions(self, key: Key) -> list[int]:
        """The sessions that wait for this publisher's events, in order of arrival."""
        return list(self._sessions.get(key, ()))

    def remove(self, key: Key) -> None:
        """All events of this publisher are confirmed."""
        for session in self._sessions.pop(key, ()):
            del self._keys[session][key]
            if not self._keys[session]:
                del self._keys[session]
