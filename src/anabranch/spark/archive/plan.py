"""Planning of an archiving run: which ticks, in which order, and in how many tasks.

1. A stream continues where the archive ends; a new stream starts at the oldest tick of the log.
2. Ticks in between that the log has trimmed are missing. That is an error or, if the user has
   allowed it, recorded.
3. Work is done in rounds, with one commit per round. Every round advances all streams in
   proportion to their backlogs, so a busy stream does not delay the others. A stream with a hundred
   times the backlog of another gets a hundred times as many tasks.

This module keeps no state.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from anabranch.model.errors import LocalError
from anabranch.spark.archive.manifest import Span, State
from anabranch.spark.survey import Extent

#: Ticks per task, which become one file unless they are large.
TASK_TICKS_MAX: Final = 262_144
TASK_TICKS_MIN: Final = 16_384
_TASKS_PER_CORE: Final = 4


class Plan(msgspec.Struct, frozen=True):
    """Ranges to archive, and missing ranges."""

    spans: list[Span]
    missing: list[Span]

    @property
    def ticks(self) -> int:
        """Number of ticks to archive."""
        return sum(span.last - span.first + 1 for span in self.spans)


def plan(state: State, extents: Mapping[str, Extent]) -> Plan:
    """Plan to archive the ticks beyond the archived ones."""
    spans, missing = [], []
    for stream, extent in sorted(extents.items()):
        if stream not in state.ranges:
            first = extent.oldest
        else:
            archived = Span(stream, *state.ranges[stream])
            check_end(archived, extent)
            first = archived.last + 1
            if first < extent.oldest:
                missing.append(Span(stream, first, extent.oldest - 1))
                first = extent.oldest
        if first < extent.end:
            spans.append(Span(stream, first, extent.end - 1))
    return Plan(spans, missing)


def check_end(archived: Span, extent: Extent | None) -> None:
    """Raise `LocalError` if a log ends before its archived range."""
    if extent is not None and archived.last >= extent.end:
        raise LocalError(
            f"the archive has tick {archived.last} of stream {archived.stream!r}, but the stream"
            f" ends before tick {extent.end}: it has lost the end of its log, or belongs to another"
            " network with the same name"
        )


def rounds(spans: list[Span], cores: int) -> Iterator[list[Span]]:
    """The parts of each round, in tick order within a stream."""
    ticks = sum(span.last - span.first + 1 for span in spans)
    size = min(max(-(-ticks // (2 * cores)), TASK_TICKS_MIN), TASK_TICKS_MAX)
    parts = []
    for span in spans:
        starts = range(span.first, span.last + 1, size)
        parts += [
            (number / len(starts), Span(span.stream, first, min(first + size - 1, span.last)))
            for number, first in enumerate(starts)
        ]
    # A stable sort keeps the order within a stream.
    parts.sort(key=lambda part: part[0])
    ordered = [part for _, part in parts]
    step = _TASKS_PER_CORE * cores
    for begin in range(0, len(ordered), step):
        yield ordered[begin : begin + step]


def joined(parts: list[Span]) -> list[Span]:
    """Merge adjacent parts into one span per stream."""
    found: dict[str, Span] = {}
    for part in parts:
        before = found.get(part.stream)
        assert before is None or before.last + 1 == part.first
        first = part.first if before is None else before.first
        found[part.stream] = Span(part.stream, first, part.last)
    return list(found.values())
