"""A world in which brokers are busy: machines that handle one thing at a time, and queues at them.

In the plain world a broker handles whatever comes in no time. Here brokers run on *machines*; what
comes over links or from clients waits until its machine has handled what came before, and then
takes its *service time*. Rules:

1. A machine serves in the order of arrival, one frame after the other, for all its brokers.
2. A frame counts as gone from its link once it has been served: what a busy neighbour has not
   taken waits at the sender, as it would with a connection whose buffers are small.
3. Service times depend on the frame alone: so much for any, so much for each event in it, and so
   much for each matching.
4. A network that *stands* has all its links at once: its first trees are made by distance. One that
   *grows* gets them one after the other, and its trees are made by what was there first.
5. What was waiting for a killed broker is lost with its connection; its machine still spends the
   time that was meant for it.

Time is virtual: a run gives the same figures on every machine; but for `cpu_s`, the processor time
that brokers took for their steps, for whoever asks for it.

Prior art: brokers with one input queue, spec PADRES section 1.
"""

import time
from collections.abc import Mapping
from random import Random
from typing import Literal

import msgspec

from anabranch.core import contract as say
from anabranch.core.broker import BrokerConfig
from anabranch.model.client_frames import Publish
from anabranch.model.frames import Knowledge
from anabranch.model.mesh_frames import Copies
from anabranch.sim.things import Connection, Weather, Wire
from anabranch.sim.world import World
from anabranch.wire.codec import decode_client, decode_link

#: Links as in one room: 100 Mbit/s, and a tenth of a millisecond or two.
_LINK_BYTES_PER_S = 12_500_000
_DELAY_S = 0.0001
_JITTER_S = 0.0001
#: When a network that stands does.
_STANDS_AT_S = 0.1


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """How long a machine takes."""

    #: For any frame, for each event in it, and for each matching of an event.
    frame_s: float = 0.000_05
    event_s: float = 0.000_5
    match_s: float = 0.004_5
    #: Who matches: every broker that an event comes to, or its origin and the edges it is for.
    matching: Literal["everywhere", "at the ends"] = "everywhere"

    def of_publishing(self, events: int) -> float:
        """For a client's events, at their origin."""
        return self.frame_s + events * (self.event_s + self.match_s)

    def of_passing(self, events: int, *, is_end: bool) -> float:
        """For events that came over a link."""
        is_matched = is_end or self.matching == "everywhere"
        return self.frame_s + events * (self.event_s + self.match_s * is_matched)


class Machine:
    """Serves brokers, one frame at a time."""

    __slots__ = ("busy_s", "events", "events_s", "free_at")

    def __init__(self) -> None:
        self.free_at = 0.0
        #: Events so far, and the time spent for frames with any.
        self.events = 0
        self.events_s = 0.0
        #: Time spent so far.
        self.busy_s = 0.0

    def serve(self, now: float, service_s: float, events: int = 0) -> float:
        """Take something in; when it is done."""
        self.free_at = max(self.free_at, now) + service_s
        self.busy_s += service_s
        self.events += events
        self.events_s += service_s if events else 0.0
        return self.free_at


class BusyWorld(World):
    """See the top of this module."""

    def __init__(
        self,
        configs: list[BrokerConfig],
        rng: Random,
        service: Service,
        machines: Mapping[str, Machine],
        *,
        stands: bool = True,
    ) -> None:
        super().__init__(configs, rng, _indoors())
        self._stands_at = _STANDS_AT_S if stands else 0.0
        self.service = service
        self.machines = machines
        self.cpu_s = 0.0
        for wire in self.wires.values():
            for queue in wire.queues:
                queue.rate = _LINK_BYTES_PER_S

    def stimulate(self, name: str, stimulus: say.Stimulus) -> None:
        """Give a broker something to handle, and perform what comes of it."""
        begin = time.process_time()
        super().stimulate(name, stimulus)
        self.cpu_s += time.process_time() - begin

    def _connect(self, wire: Wire) -> None:
        self.after(max(0.0, self._stands_at - self.now), super()._connect, wire)

    def _arrive(self, wire: Wire, number: int, direction: int, batch: list[bytes]) -> None:
        name = wire.ends[direction]
        for data in batch:
            at = self.machines[name].serve(self.now, *self._passing_s(name, data))
            self.after(at - self.now, super()._arrive, wire, number, direction, [data])

    def _passing_s(self, name: str, data: bytes) -> tuple[float, int]:
        """How long a frame takes, and how many events it has."""
        frame = decode_link(data, self.hosts[name].config.limits)
        if isinstance(frame, Copies):
            is_end = any(target.edge == name for target in frame.targets)
            return self.service.of_passing(len(frame.data), is_end=is_end), len(frame.data)
        events = len(frame.data) if isinstance(frame, Knowledge) else 0
        return self.service.of_passing(events, is_end=True), events

    def _client_to_broker(self, connection: Connection, batch: list[bytes], sent: float) -> None:
        name = connection.broker
        for data in batch:
            at = self.machines[name].serve(self.now, *self._publishing_s(name, data))
            self.after(at - self.now, super()._client_to_broker, connection, [data], sent)

    def _publishing_s(self, name: str, data: bytes) -> tuple[float, int]:
        frame = decode_client(data, self.hosts[name].config.limits)
        events = len(frame.bodies) if isinstance(frame, Publish) else 0
        return self.service.of_publishing(events), events


def _indoors() -> Weather:
    """Short links, and a disk that takes no time: what is late here waited for a broker."""
    weather = Weather()
    weather.delay_s, weather.jitter_s, weather.sync_s = _DELAY_S, _JITTER_S, 0.0
    return weather
