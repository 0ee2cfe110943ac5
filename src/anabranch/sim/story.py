"""The story of an anomaly: what happened around it, in words.

A simulation is run again with somebody listening, which changes nothing. Kept are the last lines
before the end that mention the subscription, stream or tick in question.
"""

from collections import deque

from anabranch.check.checker import Anomaly
from anabranch.sim.simulation import Simulation
from anabranch.sim.swarm import Plan

_LINES_MAX = 60
_LINE_CHARACTERS = 220


class _Listener:
    """Writes down what may matter."""

    def __init__(self, anomaly: Anomaly) -> None:
        self._words = [word for word in (anomaly.subscription, anomaly.stream) if word]
        self.lines: deque[str] = deque(maxlen=_LINES_MAX)

    def __call__(self, now: float, broker: str, what: object) -> None:
        text = repr(what)
        if any(word in text for word in self._words):
            self.lines.append(f"{now:9.4f} {broker:8} {text[:_LINE_CHARACTERS]}")


def story_of(plan: Plan, anomaly: Anomaly) -> list[str]:
    """The lines of the story."""
    simulation = Simulation(plan)
    listener = _Listener(anomaly)
    simulation.world.listener = listener
    simulation.run()
    return list(listener.lines)
