"""Share of stream ticks that a streaming query has transferred, from Spark's progress reports.

    for progress in query.recentProgress:
        print(travelled(progress))          # 199 of 1,500 ticks travelled (13.3 %)

Brokers evaluate the subscription and send only matching events. Spark reports the number of rows
received, and its offsets give the number of ticks that they cover. Silent ticks count too, because
only the brokers can tell them from events that did not match. Spark does not report where the first
batch of a new query started, so that batch has no share. Spark counts the rows of a batch twice if
it reads the batch twice, for example to sort it.

This module keeps no state.
"""

from collections.abc import Iterable, Mapping

import msgspec
from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress

from anabranch.spark.tick_ranges import Position


class Travelled(msgspec.Struct, frozen=True):
    """Rows received, and the ticks that they cover."""

    rows: int = 0
    ticks: int = 0

    @property
    def share(self) -> float:
        """Rows per tick; 0 if there are no ticks."""
        return self.rows / self.ticks if self.ticks else 0.0

    def __str__(self) -> str:
        return f"{self.rows:,} of {self.ticks:,} ticks travelled ({self.share:.1%})"


def travelled(*progress: StreamingQueryProgress) -> Travelled:
    """Sum over the batches of these reports."""
    found = [each for report in progress for each in _batches(report.sources)]
    return Travelled(sum(each.rows for each in found), sum(each.ticks for each in found))


def _batches(sources: Iterable[SourceProgress]) -> Iterable[Travelled]:
    for source in sources:
        start, end = _position(source.startOffset), _position(source.endOffset)
        if start is not None and end is not None:
            yield Travelled(source.numInputRows, _ticks(start.streams, end.streams))


def _position(offset: str | None) -> Position | None:
    """The offset of a source; None if it belongs to another data source."""
    try:
        return msgspec.json.decode(offset or "null", type=Position | None)
    except msgspec.DecodeError:
        return None


def _ticks(start: Mapping[str, int], end: Mapping[str, int]) -> int:
    return sum(tick - start.get(stream, tick) for stream, tick in end.items())
