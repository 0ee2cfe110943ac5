"""Ranges of ticks: where reading begins and ends, and how it is divided into tasks.

Offsets are ticks: {"stream": n} means that everything before tick n has been read. Silence has
ticks too, so offsets go on although nothing matches. Rules:

1. A partition is a range of ticks of one stream, read at its origin. What has been asked for is
   divided into ranges of about the same size, none larger than `RANGE_TICKS_MAX`, and into
   `minPartitions` of them or more, if there are enough ticks. So one busy stream has many tasks.
2. What is in a range does not depend on when it is read, but for events that expire: a range that
   ends at or before the head of its stream has the same events for ever, as long as the log has it.
3. The first offsets are chosen once, and are in the checkpoint of the query from then on, with the
   name of the network. A checkpoint of another network is an error.
4. A stream that appears later begins at its oldest tick. It enters the offsets with one batch, and
   is read from the next one on; so where it began is in the checkpoint too. One that has left stays
   in the offsets apart, and goes on from there if it comes back: brokers that do not have the same
   network file yet do not agree about which streams there are.
5. What is limited is limited for all streams in proportion to what they have.

State: none here; offsets are Spark's.
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

#: A task reads so many ticks at most; that takes it some tenths of a second.
RANGE_TICKS_MAX: Final = 262_144


class Range(InputPartition):
    """Ticks of one stream: from `first` to before `end`; and where they are."""

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
    """How far a query has got: what stands in its checkpoint."""

    network: str
    #: Stream → the first tick that has not been read.
    streams: Ticks
    #: The same of streams that have left the network.
    left: Ticks = {}

    def offset(self) -> dict[str, object]:
        """As Spark keeps it."""
        found: dict[str, object] = {"network": self.network, "streams": self.streams}
        return {**found, "left": self.left} if self.left else found


def read_position(offset: Mapping[str, object]) -> Position:
    """What a checkpoint says; `LocalError` if somebody else wrote it."""
    try:
        return msgspec.convert(offset, Position)
    except msgspec.ValidationError as error:
        raise LocalError(
            f"the checkpoint of this query has the offset {offset!r}, which is none of this source"
            f" ({error}); use another checkpointLocation"
        ) from error


def check_position(position: Position, network: str, there: Mapping[str, Extent]) -> None:
    """`LocalError` if a checkpoint does not belong to this network (rule 3)."""
    if position.network != network:
        raise LocalError(
            f"the checkpoint of this query is of the network {position.network!r}, and the brokers"
            f" are of {network!r}; use another checkpointLocation, or the right brokers"
        )
    for stream, tick in (position.left | position.streams).items():
        extent = there.get(stream)
        if extent is not None and tick > extent.end:
            raise LocalError(
                f"the checkpoint of this query has tick {tick} of {stream!r}, of which there are"
                f" only those before {extent.end}: that stream has lost the end of its log, or is"
                " that of another network with the same name; use another checkpointLocation"
            )


# -- beginning and end -----------------------------------------------------------------------------


def first_ticks(offsets: Offsets, there: Mapping[str, Extent]) -> Ticks:
    """Where to begin; streams that the offsets do not name begin with their oldest tick."""
    if offsets == "earliest":
        return {stream: extent.oldest for stream, extent in there.items()}
    if offsets == "latest":
        return {stream: extent.end for stream, extent in there.items()}
    _check_named("startingOffsets", offsets, there)
    # Tick 0 does not exist, and whoever says it means the first.
    named = {stream: max(tick, 1) for stream, tick in offsets.items()}
    return {stream: named.get(stream, extent.oldest) for stream, extent in there.items()}


def end_ticks(offsets: Offsets, there: Mapping[str, Extent]) -> Ticks:
    """Where to end; streams that the offsets do not name end with their newest tick."""
    if isinstance(offsets, str):
        return {stream: extent.end for stream, extent in there.items()}
    _check_named("endingOffsets", offsets, there)
    return {stream: offsets.get(stream, extent.end) for stream, extent in there.items()}


def _check_named(option: str, offsets: Mapping[str, int], there: Mapping[str, Extent]) -> None:
    for stream, tick in offsets.items():
        if stream not in there:
            raise OptionError(option, f"{stream!r} is not read; {_listed(there)} is")
        if tick > there[stream].end:
            raise OptionError(
                option,
                f"{stream!r} has ticks before {there[stream].end} only, and {tick} is asked for",
            )


# -- batches of a stream ---------------------------------------------------------------------------


def next_ticks(
    start: Ticks, there: Mapping[str, Extent], ticks_max: int, left: Mapping[str, int] = {}
) -> Ticks:
    """How far the next batch goes (rules 4 and 5); 0 is no limit. Streams that are not there stay
    where they are; of those that had left, `left` says how far they were read."""
    open_ticks = {
        stream: max(there[stream].end - first, 0)
        for stream, first in start.items()
        if stream in there
    }
    total = sum(open_ticks.values())
    if ticks_max and total > ticks_max:
        # Rounding up lets every stream go on; it costs at most one tick of each.
        open_ticks = {s: -(-count * ticks_max // total) for s, count in open_ticks.items()}
    end = {stream: first + open_ticks.get(stream, 0) for stream, first in start.items()}
    for stream, extent in there.items():
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
    """A span in equal parts, each as large as `size` at most."""
    count = -(-span // size)
    ends = [first + span * place // count for place in range(count + 1)]
    return pairwise(ends)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
