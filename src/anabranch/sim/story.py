"""The story of an anomaly: the history of the tick and the subscription in question.

The simulation is run again with an observer, which does not affect it. The story contains

- every frame that concerns the tick: data, silence, withheld ranges, requests and answers,
- the messages between client and broker about the subscription around that time,
- starts of brokers, and links that went up or down.
"""

from collections import deque

from anabranch.check.checker import Anomaly
from anabranch.core import contract
from anabranch.model import client_frames as client
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import Answer, Carry, Knowledge, LinkFrame, Nack
from anabranch.sim.simulation import Simulation
from anabranch.sim.swarm import Plan

_LINES_MAX = 80
_LINE_CHARACTERS = 200
_CONTEXT = (
    contract.Started,
    contract.LinkUp,
    contract.LinkDown,
    contract.CutLink,
    contract.CutClient,
)


class _Listener:
    """Writes down what may matter."""

    def __init__(self, anomaly: Anomaly) -> None:
        self._subscription = anomaly.subscription.partition("#")[0]
        self._stream = anomaly.stream
        self._tick = anomaly.tick
        self.lines: deque[str] = deque(maxlen=_LINES_MAX)
        self._passed = False

    def __call__(self, now: float, broker: str, what: object) -> None:
        if isinstance(what, contract.SendClient) and isinstance(what.frame, client.Deliver):
            what = contract.SendClient(what.session, self._narrowed(what.frame))
        if self._matters(broker, what):
            self.lines.append(f"{now:9.4f} {broker:8} {repr(what)[:_LINE_CHARACTERS]}")

    def _narrowed(self, frame: client.Deliver) -> client.Deliver:
        """What a frame brings to the subscription in question."""
        every = [each for each in frame.matches if each.subscription == self._subscription]
        return client.Deliver(frame.stream, every)

    def _matters(self, broker: str, what: object) -> bool:
        if isinstance(what, contract.Append):
            is_own = not what.stream and broker == self._stream
            return is_own and what.tick == self._tick
        if isinstance(what, contract.Send | contract.FrameReceived):
            return self._link_frame_matters(what.frame)
        if isinstance(what, contract.SendClient | contract.ClientFrameReceived):
            return self._client_frame_matters(what.frame)
        return isinstance(what, _CONTEXT) and not self._passed

    def _link_frame_matters(self, frame: LinkFrame) -> bool:
        if isinstance(frame, Knowledge) and frame.stream == self._stream:
            return self._is_among(frame.data, frame.silent, frame.withheld)
        if isinstance(frame, Carry) and self._stream in {frame.source, frame.target}:
            content = frame.content
            if isinstance(content, Nack):
                return any(first <= self._tick <= last for first, last in content.ranges)
            if isinstance(content, Answer):
                return content.first <= self._tick <= content.through
        return False

    def _client_frame_matters(self, frame: client.AnyClientFrame) -> bool:
        if isinstance(frame, client.Deliver):
            is_meant = frame.stream == self._stream
            return is_meant and any(self._delivery_matters(each) for each in frame.matches)
        return getattr(frame, "subscription", None) == self._subscription

    def _delivery_matters(self, matches: client.Matches) -> bool:
        near = any(datum.tick == self._tick for datum in matches.data)
        crossed = matches.through >= self._tick and not self._passed
        self._passed = self._passed or crossed
        return near or crossed

    def _is_among(
        self, data: list[Datum], silent: list[tuple[int, int]], withheld: list[Hole]
    ) -> bool:
        return (
            any(datum.tick == self._tick for datum in data)
            or any(first <= self._tick <= last for first, last in silent)
            or any(hole.first <= self._tick <= hole.last for hole in withheld)
        )


def story_of(plan: Plan, anomaly: Anomaly) -> list[str]:
    """The lines of the story."""
    simulation = Simulation(plan)
    listener = _Listener(anomaly)
    simulation.world.listener = listener
    simulation.run()
    return list(listener.lines)
