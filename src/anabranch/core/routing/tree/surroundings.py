"""What the presences of one broker share: links, marks, the own clock, and what goes out.

A presence says where a frame shall go; here it is sent over a link or, where that is this broker
itself, put aside for the presence it is meant for. So presences of one broker talk to each other
as if there were a link that loses nothing.
"""

from collections import deque
from collections.abc import Mapping

from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.clock import Clock
from anabranch.core.routing.contract import Outcome
from anabranch.core.routing.overlay import Overlay
from anabranch.core.routing.steps import Steps
from anabranch.core.routing.tree.counters import Counters
from anabranch.core.routing.tree.topology import Topology
from anabranch.core.routing.tree.vectors import Marks
from anabranch.model.errors import RemoteError
from anabranch.model.frames import (
    AskInterest,
    InterestChange,
    InterestState,
    Knowledge,
    LinkFrame,
    MarkIs,
)
from anabranch.model.limits import Limits
from anabranch.model.version import Version

InterestFrame = InterestChange | InterestState | AskInterest


class Surroundings:
    """Shared by all presences of a broker."""

    def __init__(
        self, overlay: Overlay, topology: Topology, options: Options, limits: Limits
    ) -> None:
        self.name = overlay.name
        self.overlay = overlay
        self.topology = topology
        self.options = options
        self.limits = limits
        self.marks = Marks()
        self.counters = Counters()
        #: Edge name → the clock that is kept here: of the own edge, of merging brokers.
        self.clocks: dict[str, Clock] = {}
        #: Stream → how the own edge's element grows along it.
        self.steps: dict[str, Steps] = {}
        #: Whether the own origin's vector may have grown.
        self.has_advanced = False
        #: What goes out, in order.
        self.out: list[Outcome] = []
        #: For presences of this broker.
        self.local: deque[LinkFrame] = deque()

    # -- sending ----------------------------------------------------------------------------------

    def send(self, broker: str, frame: LinkFrame) -> None:
        """Send to a broker, or to another presence of this one."""
        if broker == self.name:
            self.local.append(frame)
        else:
            self.out.append(Send(broker, frame))

    def send_interest(self, broker: str, frame: InterestFrame) -> None:
        """Send a frame about interest, and count it."""
        counters = self.counters
        if broker != self.name:
            if isinstance(frame, InterestChange):
                counters.changes_sent += 1
                counters.vector_elements_sent += len(frame.advance) + len(frame.constraint)
                counters.conjunctions_sent += len(frame.plus) + len(frame.minus)
            elif isinstance(frame, InterestState):
                counters.states_sent += 1
                counters.vector_elements_sent += len(frame.vector)
                counters.conjunctions_sent += len(frame.conjunctions)
            else:
                counters.asks_sent += 1
                counters.vector_elements_sent += len(frame.known) + len(frame.seen)
        self.send(broker, frame)

    def send_knowledge(self, broker: str, frame: Knowledge) -> None:
        """Send ticks, and before them the vector of their mark if the link needs it."""
        if broker != self.name:
            self.counters.knowledge_sent += 1
            if frame.mark:
                self._say_mark(broker, frame.stream, frame.mark)
        self.send(broker, frame)

    def _say_mark(self, broker: str, stream: str, mark: int) -> None:
        vector = self.marks.vector(stream, mark)
        if vector is None:
            return
        if self.marks.say(broker, stream, mark) or not self.options.digests:
            self.counters.marks_sent += 1
            self.counters.vector_elements_sent += len(vector)
            self.out.append(Send(broker, MarkIs(stream, mark, dict(vector))))

    # -- checking ---------------------------------------------------------------------------------

    def check_own(self, vector: Mapping[str, Version]) -> None:
        """Nobody can know more of an interest that is kept here than was ever told."""
        for edge, clock in self.clocks.items():
            version = vector.get(edge)
            if version is not None and version >= clock.current:
                raise RemoteError(
                    f"version {version} of {edge!r} arrived; {clock.current} is still to come"
                )
