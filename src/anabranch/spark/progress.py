"""How much of its streams a query has let travel, from the progress that Spark reports.

    for progress in query.recentProgress:
        print(travelled(progress))          # 199 of 1,500 ticks travelled (13.3 %)

A subscription is evaluated by the brokers, so only what matches leaves them. Spark counts the rows
that came; the offsets tell of how many ticks they are. Ticks of silence count too, since nobody but
the brokers can tell them from events that did not match. Spark does not report where the first
batch of a new query began, so that one has no share; and it counts the rows of a batch that is read
twice, for example to be sorted, twice.

This module keeps no state.
"""

from collections.abc import Iterable, Mapping

import msgspec
from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress

from anabranch.spark.tick_ranges import Position


class Travelled(msgspec.Struct, frozen=True):
    """How many rows came, of how many ticks."""

    rows: int = 0
    ticks: int = 0

    @property
    def share(self) -> float:
        """Rows for each tick; 0 if there were none."""
        return self.rows / self.ticks if self.ticks else 0.0

    def __str__(self) -> str:
        return f"{self.rows:,} of {self.ticks:,} ticks travelled ({self.share:.1%})"


def travelled(*progress: StreamingQueryProgress) -> Travelled:
    """What the batches of these reports took from networks."""
    found = [each for report in progress for each in _batches(report.sources)]
    return Travelled(sum(each.rows for each in found), sum(each.ticks for each in found))


def _batches(sources: Iterable[SourceProgress]) -> Iterable[Travelled]:
    for source in sources:
        start, end = _position(source.startOffset), _position(source.endOffset)
        if start is not None and end is not None:
            yield Travelled(source.numInputRows, _ticks(start.streams, end.streams))


def _position(offset: str | None) -> Position | None:
    """The offset of a source, if it is one of ours."""
    try:
        return msgspec.json.decode(offset or "null", type=Position | None)
    except msgspec.DecodeError:
        return None


def _ticks(start: Mapping[str, int], end: Mapping[str, int]) -> int:
    return sum(tick - start.get(stream, tick) for stream, tick in end.items())
