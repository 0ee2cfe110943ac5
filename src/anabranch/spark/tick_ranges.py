"""Tick ranges: start and end of a read, and its division into tasks.

Offsets are ticks: {"stream": n} means that all ticks before n have been read. Silence has ticks
too, so offsets advance even if no event matches. Rules:

1. A partition is a range of ticks of one stream, read at its origin. A read is divided into ranges
   of about equal size, none larger than `RANGE_TICKS_MAX`, and into at least `minPartitions` of
   them if there are enough ticks. A single busy stream therefore gets many tasks.
2. The content of a range does not depend on the time of the read, except for events that expire: a
   range that ends at or before the head of its stream has the same events as long as the log
   retains it.
3. The first offsets are chosen once and then kept in the checkpoint of the query, with the name of
   the network. A checkpoint of another network is an error.
4. A stream that appears later starts at its oldest tick. It enters the offsets with one batch and
   is read from the next batch on, so the checkpoint records where it started. A stream that has
   left stays in a separate part of the offsets and continues from there if it returns: brokers
   with different versions of the network file disagree temporarily about the list of streams.
5. A limit on a batch is divided among the streams in proportion to their backlogs.

State: none here; Spark keeps the offsets.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from anabranch.model.errors import LocalError
from anabranch.spark.options import Offsets, OptionError
from anabranch.spark.survey import Extent

Ticks = dict[str, int]

#: Maximum ticks per task; reading them takes a few tenths of a second.
RANGE_TICKS_MAX: Final = 262_144


class Range(InputPartition):
    """Partition: ticks of one stream from `first` to before `end`, and where to read them."""

    def __init__(
        self, stream: str, first: int, end: int, network: str = "", addresses: tuple[str, ...] = ()
    ) -> None:
        super().__init__((stream, first, end))
        self.stream = stream
        self.first = first
        self.end = end
        self.network = network
        self.addresses = addresses


class Position(msgspec.Struct, frozen=True):
    """Progress of a query, as stored in its checkpoint."""

    network: str
    #: Stream → first unread tick.
    streams: Ticks
    #: The same for streams that have left the network.
    left: Ticks = {}

    def offset(self) -> dict[str, object]:
        found: dict[str, object] = {"network": self.network, "streams": self.streams}
        return {**found, "left": self.left} if self.left else found


def read_position(offset: Mapping[str, object]) -> Position:
    """Parse an offset. Raises `LocalError` if another data source wrote it."""
    try:
        return msgspec.convert(offset, Position)
    except msgspec.ValidationError as error:
        raise LocalError(
            f"the checkpoint of this query has the offset {offset!r}, which does not belong to this"
            f" data source ({error}); use another checkpointLocation"
        ) from error


def check_position(position: Position, network: str, extents: Mapping[str, Extent]) -> None:
    """Raise `LocalError` if a checkpoint does not belong to this network (rule 3)."""
    if position.network != network:
        raise LocalError(
            f"the checkpoint of this query belongs to network {position.network!r}, but the brokers"
            f" belong to {network!r}; use another checkpointLocation, or the right brokers"
        )
    for stream, tick in (position.left | position.streams).items():
        extent = extents.get(stream)
        if extent is not None and tick > extent.end:
            raise LocalError(
                f"the checkpoint of this query is at tick {tick} of {stream!r}, but the stream ends"
                f" before tick {extent.end}: it has lost the end of its log, or belongs to another"
                " network with the same name; use another checkpointLocation"
            )


# -- start and end ---------------------------------------------------------------------------------


def first_ticks(offsets: Offsets, extents: Mapping[str, Extent]) -> Ticks:
    """First ticks to read; streams that the offsets do not name start at their oldest tick."""
    if offsets == "earliest":
        return {stream: extent.oldest for stream, extent in extents.items()}
    if offsets == "latest":
        return {stream: extent.end for stream, extent in extents.items()}
    _check_named("startingOffsets", offsets, extents)
    # Tick 0 does not exist; treat it as the first tick.
    named = {stream: max(tick, 1) for stream, tick in offsets.items()}
    return {stream: named.get(stream, extent.oldest) for stream, extent in extents.items()}


def end_ticks(offsets: Offsets, extents: Mapping[str, Extent]) -> Ticks:
    """End ticks; streams that the offsets do not name end at their newest tick."""
    if isinstance(offsets, str):
        return {stream: extent.end for stream, extent in extents.items()}
    _check_named("endingOffsets", offsets, extents)
    return {stream: offsets.get(stream, extent.end) for stream, extent in extents.items()}


def _check_named(option: str, offsets: Mapping[str, int], extents: Mapping[str, Extent]) -> None:
    for stream, tick in offsets.items():
        if stream not in extents:
            raise OptionError(option, f"{stream!r} is not read; the streams are {_listed(extents)}")
        if tick > extents[stream].end:
            raise OptionError(
                option,
                f"{stream!r} ends before tick {extents[stream].end}, and {tick} is requested",
            )


# -- micro-batches ---------------------------------------------------------------------------------


def next_ticks(
    start: Ticks, extents: Mapping[str, Extent], ticks_max: int, left: Mapping[str, int] = {}
) -> Ticks:
    """End of the next batch (rules 4 and 5); 0 means no limit. Streams without an extent do not
    advance; for returning streams, `left` holds their last offset."""
    open_ticks = {
        stream: max(extents[stream].end - first, 0)
        for stream, first in start.items()
        if stream in extents
    }
    total = sum(open_ticks.values())
    if ticks_max and total > ticks_max:
        # Rounding up lets every stream advance; it costs at most one tick per stream.
        open_ticks = {s: -(-count * ticks_max // total) for s, count in open_ticks.items()}
    end = {stream: first + open_ticks.get(stream, 0) for stream, first in start.items()}
    for stream, extent in extents.items():
        end.setdefault(stream, left.get(stream, extent.oldest))
    return end


def divided(start: Ticks, end: Ticks, partitions_min: int) -> list[Range]:
    """The ranges between two offsets (rule 1)."""
    spans = {s: last - start[s] for s, last in end.items() if s in start and last > start[s]}
    total = sum(spans.values())
    size = min(max(total // max(partitions_min, 1), 1), RANGE_TICKS_MAX)
    return [
        Range(stream, first, last)
        for stream, span in spans.items()
        for first, last in _pieces(start[stream], span, size)
    ]


def _pieces(first: int, span: int, size: int) -> Iterable[tuple[int, int]]:
    """Divide a span into equal parts of at most `size`."""
    count = -(-span // size)
    ends = [first + span * place // count for place in range(count + 1)]
    return pairwise(ends)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
