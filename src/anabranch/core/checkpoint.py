"""Checkpoints: what the catalog knows of a log, so that a start need not read all of it.

Everything an origin promised can be found in its log, but a long log takes long to read. So now and
then, after `checkpoint_ticks` synced ticks, the catalog takes over what the records up to a tick
told: which events of each publisher are safe (`publishers`), which marks there are, and how old and
how large the log is. A start reads the records after that tick, and no others. Rules:

1. A checkpoint is of a synced tick. Its row is put after all that it stands for; a crash keeps puts
   in their order, so where it is, the rest is too.
2. A log that ends before its checkpoint has lost what was on disk: the broker does not start.
3. Where a row that it stands for cannot be read (`marks`, `publishers`), it is void: the whole log
   is read. Its row goes before the unreadable one, so that no later start believes it.
4. Marks are put one by one, once, and taken out when the log has forgotten them or keeps no vector
   for them any more. Rows beyond the checkpoint are left over from a crash; the log has them too.

Tables: `marks` (tick → vector), and the row `checkpoint` of `stream`.
"""

from collections.abc import Iterable, Mapping
from math import isfinite

import msgspec

from anabranch.core.catalog_recovery import decoded, number_in
from anabranch.core.chapters import Chapter
from anabranch.core.contract import Damaged, Put, Recovered
from anabranch.core.marks import Marks
from anabranch.model.frame_parts import TICK_MAX, Nanoseconds, Position
from anabranch.model.version import Version

STREAM = "stream"
MARKS = "marks"
KEY = "checkpoint"


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """How far the catalog speaks for the log, and what was true there."""

    tick: Position = 0
    #: No tick after it was made before this.
    time_ns: Nanoseconds = 0
    chapters: tuple[Chapter, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Position, Nanoseconds, tuple[Chapter, ...]])
_vector_decoder = msgspec.msgpack.Decoder(dict[str, Version])

Catalog = Mapping[str, Mapping[str, bytes]]
Vector = dict[str, Version]


def read_checkpoint(value: bytes) -> Checkpoint:
    """The row `checkpoint` of `stream`."""
    found = Checkpoint(*_decoder.decode(value))
    last = 0
    for chapter in found.chapters:
        if not (isfinite(chapter.began_s) and isfinite(chapter.seen_s)) or chapter.size < 0:
            raise ValueError("a chapter has a time or a size that cannot be")
        if not last <= chapter.last <= found.tick:
            raise ValueError("its chapters are not in order")
        last = chapter.last
    return found


def read_marks(recovered: Recovered) -> tuple[dict[int, Vector], list[Damaged]]:
    """Tick → the vector of a mark, ascending; and the rows that cannot be read."""
    good, bad = decoded(recovered, MARKS, _read_mark)
    return dict(sorted(good.values())), bad


def _read_mark(key: str, value: bytes) -> tuple[int, Vector]:
    return number_in(key, TICK_MAX), _vector_decoder.decode(value)


class StoredMarks:
    """The marks that the catalog has. See rule 4 at the top of this module."""

    __slots__ = ("_ticks",)

    def __init__(self, ticks: Iterable[int]) -> None:
        self._ticks = dict.fromkeys(sorted(ticks))

    def puts(self, marks: Marks, synced: int) -> list[Put]:
        """What makes the catalog have the marks there are, as far as they are synced."""
        kept = {tick: vector for tick, vector in marks if 0 < tick <= synced}
        puts = [Put(MARKS, str(tick), None) for tick in self._ticks if tick not in kept]
        for tick, vector in kept.items():
            if tick not in self._ticks:
                puts.append(Put(MARKS, str(tick), _encoder.encode(vector)))
        self._ticks = dict.fromkeys(kept)
        return puts


def checkpoint_put(checkpoint: Checkpoint) -> Put:
    """The row of a checkpoint; to be put last."""
    return Put(STREAM, KEY, _encoder.encode(checkpoint))
