"""Replication: lives, copies and copy sets, and the frames between a writer and its copies.

A stream is kept in several copies: the log of its origin, and one at each of its keepers
(`core.replication`, ADR 0030). A *life* names a period of writing. Lives are ordered, and no two
writers ever have the same one. A *copy* has an identity of its own: a disk that is lost and
replaced is another copy. The rules of `frames` apply.

Lists of records are bounded by the bytes of a frame, lists of lives by `STARTS_MAX`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated

import msgspec

from anabranch.model.event import Count
from anabranch.model.frame_parts import ITEMS_MAX, Name, Part, Position, Text, Tick

#: Members of a copy set.
COPIES_MAX = 7
#: Lives that a copy reports; older ones are left out.
STARTS_MAX = 1_024


class Life(Part, frozen=True, order=True):
    """A period of writing: the writer's number, its broker, and the number of its process.

    Two processes of one broker may choose the same number, but never have the same process number.
    """

    number: Count = 0
    broker: Name = ""
    process: Count = 0

    def __str__(self) -> str:
        return f"{self.number}/{self.broker}" if self.number else "none"


#: Before the first life.
NO_LIFE = Life()


class CopyId(Part, frozen=True, order=True):
    """The identity of a copy: its broker, and a number drawn when its storage was created."""

    broker: Name
    number: Count


class CopySet(Part, frozen=True):
    """The copies of a stream that count, and how many of them confirm a tick."""

    members: Annotated[tuple[CopyId, ...], msgspec.Meta(min_length=1, max_length=COPIES_MAX)]
    confirm: Count

    @property
    def start_quorum(self) -> int:
        """The answers without which a life must not begin: they meet every `confirm` copies."""
        return len(self.members) - self.confirm + 1

    def count(self, copies: "set[CopyId]") -> int:
        """How many of these copies are members."""
        return sum(member in copies for member in self.members)

    def of(self, broker: str) -> CopyId | None:
        """The member at a broker."""
        return next((member for member in self.members if member.broker == broker), None)


class LifeStart(Part, frozen=True):
    """Where a life begins in a stream: the tick of its life record, and its copy set."""

    tick: Tick
    life: Life
    copies: CopySet


Starts = Annotated[tuple[LifeStart, ...], msgspec.Meta(max_length=STARTS_MAX)]
#: Table, key and value of a put; None deletes the row.
Row = tuple[Annotated[str, msgspec.Meta(max_length=64)], Text, bytes | None]
#: Table, key and value of a row that exists.
StoredRow = tuple[Annotated[str, msgspec.Meta(max_length=64)], Text, bytes]
Rows = Annotated[list[StoredRow], msgspec.Meta(max_length=ITEMS_MAX)]


def life_at(starts: Sequence[LifeStart], tick: int) -> Life:
    """The life of the record at a tick; `NO_LIFE` if it is before all known lives."""
    place = bisect_right(starts, tick, key=_tick_of)
    return starts[place - 1].life if place else NO_LIFE


def _tick_of(start: LifeStart) -> int:
    return start.tick


def common_end(
    starts: Sequence[LifeStart], last: int, other: Sequence[LifeStart], other_last: int
) -> int:
    """The last tick up to which two copies have the same records.

    Equal (life, tick) means equal records up to there, so it is enough to compare lives."""
    end = min(last, other_last)
    while end > 0:
        life, other_life = life_at(starts, end), life_at(other, end)
        if life == other_life:
            return end
        # The higher life cannot be in the other copy: continue before it.
        higher = starts if life > other_life else other
        begun = [start.tick for start in higher if start.tick <= end]
        end = begun[-1] - 1
    return 0


class ReplicationFrame(Part, frozen=True):
    """The content of a `Carry` between a writer and a copy."""

    #: The stream, which has the name of its origin.
    stream: Name


class AskLife(ReplicationFrame, frozen=True, tag=23):
    """A writer asks a copy to promise a life."""

    life: Life
    #: A number that the answer repeats.
    question: Count = 0


class LifeAnswer(ReplicationFrame, frozen=True, tag=24):
    """The answer to `AskLife`: what the copy has. It is a promise if `promised` is the asked life,
    and a refusal if it is higher."""

    #: The life that was asked for.
    life: Life
    promised: Life
    copy: CopyId
    #: Whether the broker never had records of the stream, or has lost them.
    is_empty: bool = True
    #: The first tick that it has, or will have; and the newest synced one.
    first: Tick = 1
    last: Position = 0
    #: The lives of its records, ascending.
    starts: Starts = ()
    #: Up to this tick it knows the stream to be confirmed.
    confirmed: Position = 0
    #: Whether it has the catalog rows of all records before its first one.
    has_rows: bool = False
    #: The number of the question.
    question: Count = 0
    #: The highest life that it had promised before this one.
    promised_before: Life = NO_LIFE

    @property
    def end(self) -> tuple[Life, int]:
        """The name of its last record."""
        return life_at(self.starts, self.last), self.last


class KeepTicks(ReplicationFrame, frozen=True, tag=25):
    """A writer sends records to a copy; without records, it tells what is confirmed."""

    life: Life
    copy: CopyId
    #: The lives of the record before `first` and of the records.
    starts: Starts
    first: Tick
    records: Annotated[list[bytes], msgspec.Meta(max_length=ITEMS_MAX)]
    #: Everything up to here is confirmed.
    confirmed: Position
    #: The oldest tick that the writer keeps.
    oldest: Tick
    #: The writer's catalog row about the ticks before `oldest`; empty if none are deleted.
    beginning: bytes = b""
    #: If this frame creates the copy: rows follow (`KeepRows`), which the records do not carry.
    needs_rows: bool = False


class TicksKept(ReplicationFrame, frozen=True, tag=26):
    """A copy has synced everything up to a tick."""

    life: Life
    copy: CopyId
    tick: Position
    #: It could not use what it was sent: send from the next tick on.
    is_lacking: bool = False
    #: Its row on disk says that everything up to here is confirmed.
    confirmed: Position = 0


class ForgetCopy(ReplicationFrame, frozen=True, tag=27):
    """The writer tells a broker that its copy is lost: it must be deleted."""

    life: Life
    copy: CopyId


class FetchTicks(ReplicationFrame, frozen=True, tag=28):
    """A writer that lost records asks a copy for them."""

    copy: CopyId
    life: Life
    first: Tick


class FetchedTicks(ReplicationFrame, frozen=True, tag=29):
    """Records of a copy, from `first` on."""

    life: Life
    first: Tick
    records: Annotated[list[bytes], msgspec.Meta(max_length=ITEMS_MAX)]


class FetchRows(ReplicationFrame, frozen=True, tag=30):
    """A writer that lost its catalog asks a copy for rows of the stream after a key."""

    copy: CopyId
    life: Life
    after: Text


class FetchedRows(ReplicationFrame, frozen=True, tag=31):
    """Rows of a stream, in the order of their keys."""

    life: Life
    after: Text
    rows: Rows
    #: The key to continue after; "" if these are all.
    following: Text
    #: The row about deleted ticks.
    beginning: bytes = b""


class KeepRows(ReplicationFrame, frozen=True, tag=35):
    """A writer sends catalog rows to a new copy, before the records."""

    life: Life
    copy: CopyId
    rows: Rows
    #: A number that the acknowledgement repeats.
    page: Count
    is_last: bool


class RowsKept(ReplicationFrame, frozen=True, tag=36):
    """A copy has synced a page of rows."""

    life: Life
    copy: CopyId
    page: Count


ForKeeper = AskLife | KeepTicks | KeepRows | ForgetCopy | FetchTicks | FetchRows
ForWriter = LifeAnswer | TicksKept | RowsKept | FetchedTicks | FetchedRows
ForReplication = ForKeeper | ForWriter
