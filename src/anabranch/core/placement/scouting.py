"""What a join point may ask of routing about places: who publishes, how far that is, who listens.

Only routing that has advertisements and knows ways can answer; elsewhere there is no scout, and
patterns stay where they were defined.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from anabranch.core.placement.cost import Load
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.statistics import StreamStatistics

#: Origin → what its statistics say, if it has any.
Sources = Mapping[str, tuple[StreamStatistics, ...]]


class Scout(Protocol):
    """Asked by join points. All answers are of this moment, and change nothing."""

    @property
    def load(self) -> Load:
        """How busy this broker is."""

    def come_s(self, edge: str) -> float | None:
        """Seconds of the way from an edge to this broker; None if there is none."""

    def go_s(self, edge: str) -> float | None:
        """The same to an edge, until what comes there is dealt with."""

    def sources(self, filter: Filter) -> Sources:
        """The origins where something may be published that matches."""

    def wanting(self, attributes: Mapping[str, Value]) -> Sequence[str]:
        """The other edges that are known to want an event like this of the own stream."""
