"""Which ticks are to be archived, in which order, and by how many tasks.

1. A stream goes on where the archive has got; one that the archive does not know begins with the
   oldest tick that the log has.
2. Ticks between the two that the log has forgotten are missing. That is an error, or, if the user
   has agreed, written down.
3. Work is done in rounds, each of which is one commit. In every round all streams get on, in
   proportion to what they have; so a busy one does not keep the others waiting. A stream that has a
   hundred times as much as the others is done by a hundred times as many tasks.

This module keeps no state.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from anabranch.model.errors import LocalError
from anabranch.spark.archive.manifest import Span, State
from anabranch.spark.survey import Extent

#: Ticks that one task archives, which become one file, if they are not large.
TASK_TICKS_MAX: Final = 262_144
TASK_TICKS_MIN: Final = 16_384
_TASKS_PER_CORE: Final = 4


class Plan(msgspec.Struct, frozen=True):
    """What is to be done."""

    spans: list[Span]
    missing: list[Span]

    @property
    def ticks(self) -> int:
        """How many ticks that are."""
        return sum(span.last - span.first + 1 for span in self.spans)


def plan(state: State, there: Mapping[str, Extent]) -> Plan:
    """What there is beyond what is archived."""
    spans, missing = [], []
    for stream, extent in sorted(there.items()):
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
    """`LocalError` if a log ends before what was archived of it."""
    if extent is not None and archived.last >= extent.end:
        raise LocalError(
            f"the archive has tick {archived.last} of stream {archived.stream!r}, of which there"
            f" are only those before {extent.end}: that stream has lost the end of its log, or is"
            " that of another network with the same name"
        )


def rounds(spans: list[Span], cores: int) -> Iterator[list[Span]]:
    """The parts of each round, in the order of ticks within a stream."""
    ticks = sum(span.last - span.first + 1 for span in spans)
    size = min(max(-(-ticks // (2 * cores)), TASK_TICKS_MIN), TASK_TICKS_MAX)
    parts = []
    for span in spans:
        starts = range(span.first, span.last + 1, size)
        parts += [
            (number / len(starts), Span(span.stream, first, min(first + size - 1, span.last)))
            for number, first in enumerate(starts)
        ]
    # Stable, so those of one stream stay in their order.
    parts.sort(key=lambda part: part[0])
    ordered = [part for _, part in parts]
    step = _TASKS_PER_CORE * cores
    for begin in range(0, len(ordered), step):
        yield ordered[begin : begin + step]


def joined(parts: list[Span]) -> list[Span]:
    """One span for each stream."""
    found: dict[str, Span] = {}
    for part in parts:
        before = found.get(part.stream)
        assert before is None or before.last + 1 == part.first
        first = part.first if before is None else before.first
        found[part.stream] = Span(part.stream, first, part.last)
    return list(found.values())
