"""Publishers: which of their events the log has, so that none is taken twice.

A publisher sends an event until it is confirmed, over new sessions and after crashes of either
side. So the origin remembers, per publisher, the newest incarnation and the highest sequence it
took. Rules:

1. Within an incarnation, sequences are 1, 2, 3 … An event with the next sequence is new; one that
   is not higher than what was taken is *known*: it is confirmed again and not appended again; one
   that leaves a gap is refused, and told which sequence is expected.
2. A higher incarnation ends all lower ones: their events are refused from then on. It begins with
   sequence 1, and only when an event of it is taken; a refused one changes nothing. It is a time in
   ns, by the clock of the client, and may lead the clock of this broker by `incarnation_lead_s`:
   otherwise one event with the highest number of all would be the last of its publisher. What is
   beyond is refused for the time being, with both clocks in the reason. A log may hold a higher one
   nevertheless, from before this rule or a clock that was wrong. That incarnation goes on; no other
   one can begin until the clock has come near it, and the refusal says what to do.
3. *Taken* is what was appended, *safe* is what is synced. Only what is safe is confirmed.
4. Only what is safe goes into the catalog. A crash may keep a put and lose an append that came
   before it; a put that ran ahead would turn the lost event into a known one.
5. Nobody is forgotten, because whoever is forgotten might repeat an event. Where there are
   `publishers_max`, a new publisher is refused.
6. A row that cannot be read is found again in the log, if that has an event of its publisher: the
   last one there is the last one there was. Where it has none, the incarnation that the clock names
   has begun, and all lower ones are over: nothing is taken twice, and what an older incarnation
   still has to send is refused, taken before or not.
7. A refusal is *final* if sending the event again could never help: its incarnation is over, or
   there is no place for its publisher. A gap is not: what is missing may be on its way.
8. In a log that was renewed, an incarnation that does not begin with sequence 1 began in the part
   that is lost. What of it is there nobody knows, so it is over.

State: found again in the records of the log, and for records that are deleted in the catalog
(table `publishers`), where `checkpoint` puts it before they are. Who waits for confirmation is safe
to lose: sessions end with the process.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from anabranch.core.catalog_recovery import decoded, set_aside
from anabranch.core.contract import DamagedRecord, Put, Recovered
from anabranch.model.errors import EventError
from anabranch.model.event import Count, EventId
from anabranch.model.instants import utc_text
from anabranch.model.names import check_name

#: Publisher and incarnation: what a confirmation counts in.
Key = tuple[str, int]
#: Incarnation and sequence, ordered as they were published.
Place = tuple[int, int]

TABLE = "publishers"
#: Incarnations that are remembered because their first event was refused.
POSTPONED_MAX = 1_024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Count, Count])
#: Bytes of a publisher's name, whatever limits were in force when it came.
_NAME_BYTES_MAX = 65_535


def stored(recovered: Recovered) -> tuple[dict[str, Place], list[DamagedRecord]]:
    """Publisher → what the catalog says is safe; and the rows that cannot be read."""
    return decoded(recovered, TABLE, _read)


def _read(key: str, value: bytes) -> Place:
    check_name(key, "the publisher", _NAME_BYTES_MAX)
    return _decoder.decode(value)


class PublishRefusal(NamedTuple):
    """Why an event is not taken."""

    reason: str
    #: Whether it never will be.
    is_final: bool = False
    #: The incarnation that has begun in place of the event's; 0 if that is not why.
    begun: int = 0
    #: What kind of reason it is, where somebody has to know.
    code: str = ""


class _Publisher:
    __slots__ = ("incarnation", "safe", "stored", "taken")

    def __init__(self, place: Place, stored: Place) -> None:
        self.incarnation, self.taken = place
        #: Invariant: stored ≤ safe ≤ (incarnation, taken).
        self.safe = place
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
        stored: Mapping[str, Place],
        publishers_max: int,
        incarnation_lead_s: float,
        *,
        is_renewed: bool = False,
    ) -> None:
        self._is_renewed = is_renewed
        #: New incarnations whose first event was refused for the time being; of a renewed log.
        self._postponed: dict[Key, None] = {}
        self._known = {name: _Publisher(place, place) for name, place in stored.items()}
        self._publishers_max = publishers_max
        self._lead_ns = int(incarnation_lead_s * 1e9)
        #: Those of whom more is safe than stored.
        self._unstored: dict[str, None] = {}

    def recover(self, event_id: EventId) -> None:
        """The log has this event. To be told in the order of the log."""
        place = (event_id.incarnation, event_id.sequence)
        publisher = self._known.get(event_id.publisher)
        if publisher is None:
            self._known[event_id.publisher] = _Publisher(place, (0, 0))
        elif publisher.safe < place:
            publisher.incarnation, publisher.taken = place
            publisher.safe = place
        else:
            return
        self._unstored[event_id.publisher] = None

    def replace_lost(self, recovered: Recovered, lost: Iterable[DamagedRecord], now: float) -> None:
        """Set rows aside that cannot be read, now that the log is read (rule 6)."""
        for each in lost:
            instead = None
            if each.key not in self._known and _is_name(each.key):
                place = (int(now * 1e9), 0)
                self._known[each.key] = _Publisher(place, place)
                instead = _encoder.encode(place)
            set_aside(recovered, each, instead)

    def __contains__(self, name: str) -> bool:
        """Whether there is anything of this publisher."""
        return name in self._known

    def knows(self, event_id: EventId) -> bool:
        """Whether this event was taken already."""
        publisher = self._known.get(event_id.publisher)
        return (
            publisher is not None
            and event_id.incarnation == publisher.incarnation
            and event_id.sequence <= publisher.taken
        )

    def refusal(self, event_id: EventId, clock_ns: int) -> PublishRefusal | None:
        """Why this event, which is not known, cannot be taken; None if it can."""
        publisher = self._known.get(event_id.publisher)
        highest = clock_ns + self._lead_ns
        begun = 0 if publisher is None else publisher.incarnation
        if event_id.incarnation > max(begun, highest):
            return PublishRefusal(
                f"incarnation {event_id.incarnation} ({utc_text(event_id.incarnation)}) leads this"
                f" broker's clock ({utc_text(clock_ns)}) by more than {self._lead_ns / 1e9:g} s;"
                " set the clock that is wrong, and start its broker or client again"
            )
        if publisher is None:
            expected = 1
            if len(self._known) >= self._publishers_max:
                return PublishRefusal(
                    f"{self._publishers_max} publishers are remembered here, and no more can be"
                    " (publishers_max); publish at another broker",
                    is_final=True,
                )
        elif event_id.incarnation < begun:
            advice = "open a higher one"
            if begun >= highest:
                advice = (
                    f"that is {utc_text(begun)}, and this broker's clock is at"
                    f" {utc_text(clock_ns)}, so no higher one can begin here: set the clock,"
                    " publish at another broker, or take another name"
                )
            return PublishRefusal(
                f"incarnation {event_id.incarnation} is over, {begun} has begun; {advice}",
                is_final=True,
                begun=begun,
            )
        else:
            newer = event_id.incarnation > begun
            expected = 1 if newer else publisher.taken + 1
        if event_id.sequence != expected:
            if self._is_lost(event_id, expected):
                return PublishRefusal(
                    f"incarnation {event_id.incarnation} began before the log was renewed, in the"
                    " part that is lost; open a higher one",
                    is_final=True,
                    begun=event_id.incarnation,
                )
            return PublishRefusal(
                f"sequence {expected} is expected, send it before {event_id.sequence}"
            )
        return None

    def _is_lost(self, event_id: EventId, expected: int) -> bool:
        """Rule 8."""
        key = (event_id.publisher, event_id.incarnation)
        return self._is_renewed and expected == 1 and key not in self._postponed

    def postpone(self, event_id: EventId) -> None:
        """This event was refused for the time being."""
        if self._is_renewed and event_id.sequence == 1:
            if len(self._postponed) >= POSTPONED_MAX:
                del self._postponed[next(iter(self._postponed))]
            self._postponed[event_id.publisher, event_id.incarnation] = None

    def take(self, event_id: EventId) -> None:
        """This event is appended."""
        publisher = self._known.get(event_id.publisher)
        if publisher is None:
            publisher = self._known[event_id.publisher] = _Publisher((0, 0), (0, 0))
        place = (publisher.incarnation, publisher.taken)
        publisher.incarnation, publisher.taken = max(
            place, (event_id.incarnation, event_id.sequence)
        )

    def make_safe(self, key: Key, sequence: int) -> None:
        """Everything of this incarnation is synced up to this sequence."""
        name, incarnation = key
        publisher = self._known[name]
        publisher.safe = max(publisher.safe, (incarnation, sequence))
        self._unstored[name] = None

    def taken(self, key: Key) -> int:
        """The sequence up to which this incarnation, which is not over, was taken."""
        publisher = self._known.get(key[0])
        return publisher.taken if publisher is not None and publisher.incarnation == key[1] else 0

    def safe(self, key: Key) -> int:
        """The sequence up to which this incarnation, which is not over, is safe."""
        publisher = self._known.get(key[0])
        incarnation, sequence = (0, 0) if publisher is None else publisher.safe
        return sequence if incarnation == key[1] else 0

    def checkpoint(self) -> list[Put]:
        """What the catalog must have before records are deleted."""
        puts = []
        for name in self._unstored:
            publisher = self._known[name]
            if publisher.stored < publisher.safe:
                puts.append(Put(TABLE, name, _encoder.encode(publisher.safe)))
                publisher.stored = publisher.safe
        self._unstored.clear()
        return puts


def _is_name(text: str) -> bool:
    try:
        check_name(text, "the publisher", _NAME_BYTES_MAX)
    except EventError:
        return False
    return True


class PendingConfirmations:
    """Sessions that wait for a confirmation."""

    __slots__ = ("_keys", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[Key, dict[int, None]] = {}
        self._keys: dict[int, dict[Key, None]] = {}

    def add(self, session: int, key: Key) -> None:
        """This session waits for this publisher's events."""
        sessions = self._sessions.setdefault(key, {})
        if session in sessions:
            return
        sessions[session] = None
        self._keys.setdefault(session, {})[key] = None

    def left(self, session: int) -> None:
        """This session waits for nothing any more."""
        for key in self._keys.pop(session, ()):
            del self._sessions[key][session]
            if not self._sessions[key]:
                del self._sessions[key]

    def sessions(self, key: Key) -> list[int]:
        """Who waits for this publisher's events, in the order they came."""
        return list(self._sessions.get(key, ()))

    def satisfied(self, key: Key) -> None:
        """All of this publisher's events are confirmed."""
        for session in self._sessions.pop(key, ()):
            del self._keys[session][key]
            if not self._keys[session]:
                del self._keys[session]
