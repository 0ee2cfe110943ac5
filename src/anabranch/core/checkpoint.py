"""Checkpoints: what the catalog knows of a log, so that a start need not read all of it.

Everything an origin promised can be found in its log, but a long log takes long to read. So now and
then, after `checkpoint_ticks` synced ticks, the catalog takes over what the records up to a tick
told: which events of each publisher are safe (`publishers`), which marks there are, and how old and
how large the log is. A start reads the records after that tick, and no others. Rules:

1. A checkpoint is of a synced tick. Its row is put after all that it stands for; a crash keeps puts
   in their order, so where it is, the rest is too.
2. A log that ends before its checkpoint has lost what was on disk: the broker does not start.
3. Marks are put one by one, once, and taken out when the log has forgotten them or keeps no vector
   for them any more. Rows beyond the checkpoint are left over from a crash; the log has them too.

Tables: `marks` (tick → vector), and the row `checkpoint` of `stream`.
"""

from collections.abc import Mapping

import msgspec

from anabranch.core.chapters import Chapter
from anabranch.core.contract import Put
from anabranch.core.marks import Marks
from anabranch.model.version import Version

STREAM = "stream"
MARKS = "marks"
KEY = "checkpoint"


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """How far the catalog speaks for the log, and what was true there."""

    tick: int = 0
    #: No tick after it was made before this.
    time_ns: int = 0
    chapters: tuple[Chapter, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Checkpoint)
_vector_decoder = msgspec.msgpack.Decoder(dict[str, Version])

Catalog = Mapping[str, Mapping[str, bytes]]


def stored_checkpoint(catalog: Catalog) -> Checkpoint:
    """The newest one, or one of nothing."""
    data = catalog.get(STREAM, {}).get(KEY)
    return Checkpoint() if data is None else _decoder.decode(data)


class StoredMarks:
    """The marks that the catalog has. See rule 3 at the top of this module."""

    __slots__ = ("_ticks",)

    def __init__(self, catalog: Catalog) -> None:
        self._ticks = dict.fromkeys(sorted(map(int, catalog.get(MARKS, {}))))

    def read(self, catalog: Catalog, after: int, last: int) -> list[tuple[int, dict[str, Version]]]:
        """The marks between these ticks, ascending."""
        rows = catalog.get(MARKS, {})
        wanted = (tick for tick in self._ticks if after < tick <= last)
        return [(tick, _vector_decoder.decode(rows[str(tick)])) for tick in wanted]

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
