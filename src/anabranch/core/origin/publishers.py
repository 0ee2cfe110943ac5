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
5. At `publishers_max`, new publishers are refused.
6. An unreadable row is restored from the log if the log has an event of the publisher: the last one
   there is the last one accepted. Otherwise the incarnation of the current time has begun, and all
   lower ones are over: no event is accepted twice, and pending events of an older incarnation are
   refused, whether they were accepted before or not.
7. A refusal is *final* if resending can never help: the incarnation is over, or there is no space
   for the publisher. A gap is not final: the missing events may be in flight.
8. In a renewed log, an incarnation that does not begin with sequence 1 began in the lost part. Its
   accepted events are unknown, so it is over.

A publisher that stays away is forgotten, because otherwise every name that was ever used would take
space forever (ADR 0028).

9. Floor. Before a publisher is forgotten, the *floor* is raised to its incarnation. Incarnations up
   to the floor are over for every publisher that is not on record, so a forgotten event is refused,
   never accepted again. The put of the floor precedes the deletion of the row: a crash keeps puts
   in their order. The refusal has the code `FORGOTTEN`, unless no higher incarnation can begin
   (rule 2).
10. Who. A publisher is forgotten once it has had neither an event nor a session here for
    `publisher_keep_s`, all ticks of its events are deleted (and so synced), and its incarnation
    began at least `publisher_keep_s` ago by this broker's clock. So the floor is that far in the
    past: a younger incarnation is never refused for it, whatever the clock of another publisher
    said.
11. Sinks are never forgotten, and the floor does not concern them: their incarnations are numbers
    of batches (`batches`). Neither does it concern join points, which are forgotten as well: their
    sessions do not leave the process, and a new activation has a higher incarnation and resends
    nothing.
12. Looks. Every `publisher_keep_s` / `LOOKS` each publisher is looked at, at most `LOOKS_PER_STEP`
    of them in a step. A look that finds a session writes the time into the row, if no event did.
    Events write nothing more than without this rule. After a crash, the time in a row is therefore
    up to two looks old, and the silence must last two looks longer than `publisher_keep_s`. The
    first looks of a life, and the next ones after the machine was suspended, come after a while, so
    that clients can reconnect.
13. An unreadable floor is replaced by the current time, and so is one that may have been under an
    unreadable key.

State: restored from the records of the log and, for deleted records, from the catalog (table
`publishers`: [incarnation, sequence, time last seen, tick of the last event]; in version 0.2 only
the first two), to which `checkpoint` writes it before they are deleted. The floor is the row
`floor` of the table `forgotten`. Pending confirmations are safe to lose: sessions end with the
process.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from anabranch.core.catalog_recovery import decoded, set_aside
from anabranch.core.contract import DamagedRecord, Put, Recovered
from anabranch.core.options import Options
from anabranch.model.client_frames import FORGOTTEN
from anabranch.model.errors import EventError
from anabranch.model.event import Count, EventId, utc_text
from anabranch.model.names import JOIN_POINT_PREFIX, SINK_PREFIX, check_name

#: Publisher and incarnation, the scope of a confirmation.
Key = tuple[str, int]
#: Incarnation and sequence, in the order of publication.
PublishPosition = tuple[int, int]

TABLE = "publishers"
#: Incarnations on record because their first event was refused.
POSTPONED_MAX = 1_024

#: Table of the floor, and its only row.
FLOOR_TABLE = "forgotten"
FLOOR = "floor"
#: Looks at each publisher per `publisher_keep_s`; at most so many in a step, and the pause after a
#: step that did not complete them.
LOOKS = 8
LOOKS_PER_STEP = 256
LOOKS_PAUSE_S = 0.05
#: The first looks of a life come after this time at most, and extend over as much again.
FIRST_LOOKS_S = 3_600.0
#: Publishers are looked at in groups; so many groups are due between two looks at one publisher.
_GROUPS = 64

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Count, ...])
_floor_decoder = msgspec.msgpack.Decoder(Count)
#: Limit of a publisher's name, whatever the limits were when it was accepted.
_NAME_BYTES_MAX = 65_535


class PublisherRow(NamedTuple):
    """A row of the table `publishers`."""

    incarnation: int
    #: The last synced sequence.
    sequence: int
    #: When the publisher was last seen; 0 if the row does not say.
    seen_ns: int = 0
    #: The tick of its last event, or a later one; 0 if the row does not say.
    tick: int = 0


def stored(recovered: Recovered) -> tuple[dict[str, PublisherRow], list[DamagedRecord]]:
    """Publisher → its row in the catalog; and the rows that cannot be read."""
    return decoded(recovered, TABLE, _read)


def _read(key: str, value: bytes) -> PublisherRow:
    check_name(key, "the publisher", _NAME_BYTES_MAX)
    row = _decoder.decode(value)
    if len(row) not in (2, 4):
        raise ValueError(f"a publisher has 2 or 4 numbers, not {len(row)}")
    return PublisherRow(*row)


def _read_floor(key: str, value: bytes) -> int:
    if key != FLOOR:
        raise ValueError(f"table {FLOOR_TABLE!r} has no such key")
    return _floor_decoder.decode(value)


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
    __slots__ = ("appended", "incarnation", "seen_ns", "stored", "synced", "tick")

    def __init__(
        self, place: PublishPosition, stored: PublishPosition, seen_ns: int, tick: int
    ) -> None:
        self.incarnation, self.appended = place
        #: Invariant: stored ≤ synced ≤ (incarnation, appended).
        self.synced = place
        self.stored = stored
        #: When its last event arrived, or a look found a session; 0: unknown, before any look.
        self.seen_ns = seen_ns
        #: The tick of its last event, or a later one.
        self.tick = tick

    @property
    def is_synced(self) -> bool:
        return self.synced == (self.incarnation, self.appended)

    def row(self) -> bytes:
        return _encoder.encode((*self.synced, self.seen_ns, self.tick))


class _Group(NamedTuple):
    """Publishers that are looked at together."""

    at: float
    names: list[str]


class Looked(NamedTuple):
    """What a look at some publishers changes."""

    #: In this order: rows of publishers that are present, the floor, deletions.
    puts: list[Put]
    forgotten: list[str]


class Publishers:
    """All publishers of one origin. See the rules at the top of this module."""

    __slots__ = (
        "_exempt",
        "_floor",
        "_groups",
        "_is_renewed",
        "_keep_ns",
        "_known",
        "_lead_ns",
        "_look_every_s",
        "_pause_until",
        "_postponed",
        "_publishers_max",
        "_unstored",
        "forgotten",
    )

    def __init__(
        self,
        stored: Mapping[str, PublisherRow],
        options: Options,
        now: float,
        *,
        last_tick: int = 0,
        is_renewed: bool = False,
    ) -> None:
        """`last_tick`: the newest tick of the log, which no event on record is beyond."""
        self._is_renewed = is_renewed
        #: In a renewed log, new incarnations whose first event was refused temporarily.
        self._postponed: dict[Key, None] = {}
        now_ns = int(now * 1e9)
        self._known: dict[str, _Publisher] = {}
        for name, row in stored.items():
            place = (row.incarnation, row.sequence)
            tick = min(row.tick or last_tick, last_tick)
            self._known[name] = _Publisher(place, place, min(row.seen_ns, now_ns), tick)
        self._publishers_max = options.publishers_max
        self._lead_ns = int(options.incarnation_lead_s * 1e9)
        #: Publishers with synced events that are not stored yet.
        self._unstored: dict[str, None] = {}
        self._keep_ns = int(options.publisher_keep_s * 1e9)
        self._look_every_s = options.publisher_keep_s / LOOKS
        #: Incarnations up to this one are over for publishers that are not on record; 0: none.
        #: Invariant: at least the incarnation of every forgotten publisher but join points.
        self._floor = 0
        #: Publishers of sinks without the prefix, from version 0.1.
        self._exempt: frozenset[str] = frozenset()
        #: The next looks, in order. Invariant from `begin_looks` on: each publisher on record that
        #: may be forgotten is in one group, once.
        self._groups: deque[_Group] = deque()
        self._pause_until = 0.0
        #: Publishers forgotten in this life.
        self.forgotten = 0

    def recover(self, event_id: EventId, tick: int, time_ns: int) -> None:
        """Record an event that the log contains. Called in the order of the log."""
        place = (event_id.incarnation, event_id.sequence)
        publisher = self._known.get(event_id.publisher)
        if publisher is None:
            self._known[event_id.publisher] = _Publisher(place, (0, 0), time_ns, tick)
        else:
            publisher.seen_ns = max(publisher.seen_ns, time_ns)
            publisher.tick = max(publisher.tick, tick)
            if publisher.synced >= place:
                return
            publisher.incarnation, publisher.appended = place
            publisher.synced = place
        self._unstored[event_id.publisher] = None

    def replace_lost(
        self, recovered: Recovered, lost: Iterable[DamagedRecord], now: float, last_tick: int
    ) -> None:
        """Set unreadable rows aside, after the log was read (rule 6)."""
        for damaged in lost:
            instead = None
            if damaged.key not in self._known and _is_name(damaged.key):
                place = (int(now * 1e9), 0)
                self._known[damaged.key] = _Publisher(place, place, 0, last_tick)
                instead = _encoder.encode(place)
            set_aside(recovered, damaged, instead)

    def restore_floor(self, recovered: Recovered, clock_ns: int) -> None:
        """Read the floor. Whatever cannot be read may have been the floor (rule 13)."""
        good, lost = decoded(recovered, FLOOR_TABLE, _read_floor)
        self._floor = good.get(FLOOR, 0)
        if not lost:
            return
        self._floor = max(self._floor, clock_ns)
        row = _encoder.encode(self._floor)
        if all(damaged.key != FLOOR for damaged in lost):
            recovered.repairs.append(Put(FLOOR_TABLE, FLOOR, row))
        for damaged in lost:
            set_aside(recovered, damaged, row if damaged.key == FLOOR else None)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._known)

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
            if event_id.incarnation <= self._floor and not _is_internal(event_id.publisher):
                return self._forgotten_refusal(event_id, clock_ns)
            if len(self._known) >= self._publishers_max:
                return PublishRefusal(
                    f"{self._publishers_max} publishers are on record here, the maximum"
                    " (publishers_max), until some have been silent for publisher_keep_s; publish"
                    " at another broker",
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

    def _forgotten_refusal(self, event_id: EventId, clock_ns: int) -> PublishRefusal:
        """The refusal of an incarnation that a forgotten publisher may have used (rule 9)."""
        advice, code = "open a higher one", FORGOTTEN
        if self._floor >= clock_ns + self._lead_ns:
            code = ""
            advice = (
                f"this broker's clock is at {utc_text(clock_ns)}, so no higher one can begin here:"
                " correct the clock, or publish at another broker"
            )
        return PublishRefusal(
            f"incarnation {event_id.incarnation} ({utc_text(event_id.incarnation)}) is over:"
            " publishers that were silent for publisher_keep_s are forgotten, with incarnations up"
            f" to {self._floor} ({utc_text(self._floor)}); {advice}",
            is_final=True,
            begun=self._floor,
            code=code,
        )

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

    def record_append(self, event_id: EventId, tick: int, now: float) -> None:
        publisher = self._known.get(event_id.publisher)
        if publisher is None:
            publisher = self._known[event_id.publisher] = _Publisher((0, 0), (0, 0), 0, 0)
            self._look_later(event_id.publisher, now)
        place = (publisher.incarnation, publisher.appended)
        publisher.incarnation, publisher.appended = max(
            place, (event_id.incarnation, event_id.sequence)
        )
        publisher.seen_ns = int(now * 1e9)
        publisher.tick = tick

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
                puts.append(self._put(name, publisher))
        self._unstored.clear()
        return puts

    def _put(self, name: str, publisher: _Publisher) -> Put:
        publisher.stored = publisher.synced
        return Put(TABLE, name, publisher.row())

    # -- forgetting -----------------------------------------------------------------------------

    def exempt(self, names: Iterable[str]) -> None:
        """Never forget these, beside the publishers with the prefix of sinks."""
        self._exempt = frozenset(names)

    def begin_looks(self, now: float) -> None:
        """Plan the first looks of this life, before any event is appended."""
        assert not self._groups
        names = [name for name in self._known if not name.startswith(SINK_PREFIX)]
        wait_s = min(self._look_every_s, FIRST_LOOKS_S)
        size = -(-len(names) // _GROUPS)
        for number, first in enumerate(range(0, len(names), size or 1), 1):
            at = now + wait_s * (1 + number / _GROUPS)
            self._groups.append(_Group(at, names[first : first + size]))

    def _look_later(self, name: str, now: float) -> None:
        if name.startswith(SINK_PREFIX):
            return
        at = now + self._look_every_s
        if not self._groups or self._groups[-1].at < at:
            self._groups.append(_Group(at + self._look_every_s / _GROUPS, []))
        self._groups[-1].names.append(name)

    def next_look(self) -> float | None:
        """When `look` has something to do."""
        return max(self._groups[0].at, self._pause_until) if self._groups else None

    def look(self, now: float, oldest: int, is_present: Callable[[str], bool]) -> Looked:
        """Look at the publishers that are due, and forget those that are gone (rules 9 to 12).

        `oldest`: the oldest tick of the log; `is_present`: whether a client has a session."""
        due_at = self.next_look()
        if due_at is None or due_at > now:
            return Looked([], [])
        if now > due_at + self._look_every_s:
            # The machine was suspended, or its clock was set: clients can reconnect first.
            self._pause_until = now + min(self._look_every_s, FIRST_LOOKS_S)
            return Looked([], [])
        puts: list[Put] = []
        gone: list[str] = []
        for name in self._due(now):
            publisher = self._known[name]
            if self._is_gone(name, publisher, now, oldest, is_present):
                gone.append(name)
                continue
            self._look_later(name, now)
            put = self._refreshed(name, publisher, now, is_present)
            if put is not None:
                puts.append(put)
        floor = max(
            (self._known[name].incarnation for name in gone if not _is_internal(name)), default=0
        )
        if floor > self._floor:
            self._floor = floor
            puts.append(Put(FLOOR_TABLE, FLOOR, _encoder.encode(floor)))
        for name in gone:
            assert self._known[name].is_synced, "only synced ticks are deleted"
            del self._known[name]
            self._unstored.pop(name, None)
            puts.append(Put(TABLE, name, None))
        self.forgotten += len(gone)
        return Looked(puts, gone)

    def _due(self, now: float) -> list[str]:
        due: list[str] = []
        while self._groups and self._groups[0].at <= now and len(due) < LOOKS_PER_STEP:
            names = self._groups[0].names
            while names and len(due) < LOOKS_PER_STEP:
                due.append(names.pop())
            if not names:
                self._groups.popleft()
        self._pause_until = now + LOOKS_PAUSE_S if len(due) == LOOKS_PER_STEP else 0.0
        return due

    def _is_gone(
        self,
        name: str,
        publisher: _Publisher,
        now: float,
        oldest: int,
        is_present: Callable[[str], bool],
    ) -> bool:
        """Whether a publisher is forgotten now (rule 10)."""
        now_ns = int(now * 1e9)
        silent_ns = self._keep_ns + 2 * self._keep_ns // LOOKS
        return (
            0 < publisher.seen_ns <= now_ns - silent_ns
            and publisher.tick < oldest
            and (_is_internal(name) or 0 < publisher.incarnation <= now_ns - self._keep_ns)
            and name not in self._exempt
            and not is_present(name)
        )

    def _refreshed(
        self, name: str, publisher: _Publisher, now: float, is_present: Callable[[str], bool]
    ) -> Put | None:
        """Record that a publisher is present, unless an event has just recorded it (rule 12)."""
        now_ns = int(now * 1e9)
        publisher.seen_ns = min(publisher.seen_ns, now_ns)
        is_recent = publisher.seen_ns > now_ns - self._keep_ns // LOOKS // 2
        if is_recent or not publisher.is_synced or (publisher.seen_ns and not is_present(name)):
            return None
        publisher.seen_ns = now_ns
        return self._put(name, publisher)


def _is_internal(name: str) -> bool:
    """Whether a name belongs to a sink or a join point, whose incarnations are not times."""
    return name.startswith((SINK_PREFIX, JOIN_POINT_PREFIX))


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
