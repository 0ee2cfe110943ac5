"""Checks what keepers tell edges about streams of which they have copies.

Everything that the copies of a stream have confirmed is known here, with its records. So each
answer of a keeper can be compared with the stream when it is sent:

1. It says nothing about a tick that is not confirmed, and names no newer head (`stale-read`).
2. A tick that it sends with an event has that event; a silent one has none (`copy-differs`).
3. `Resent` names every tick of its ranges; an answer to a replay has every event up to its end that
   matches and may travel that far (`left-out`).
4. It calls ticks deleted only if the origin has deleted them (`wrongly-deleted`).

What a broker asks of its own copies is not seen: no frame carries it.

Witness: events that keepers sent, and those that they sent while the origin was down.
"""

from collections.abc import Callable, Iterator, Mapping

from anabranch.check.checker import Anomaly
from anabranch.core import contract
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.model.encoding import decode_event
from anabranch.model.filter import Filter
from anabranch.model.frames import Answer, Carry, NotKept, ReplayCopy, Resent
from anabranch.sim.world import Watcher, World


class CopyReadWatch:
    """The watch over one world. See the top of this module."""

    def __init__(self, world: World, deleted: Callable[[str], int]) -> None:
        self._world = world
        #: Up to which tick a stream is deleted, or about to be.
        self._deleted = deleted
        #: (keeper, edge, request) → the replay.
        self._replays: dict[tuple[str, str, int], ReplayCopy] = {}
        self.anomalies: list[Anomaly] = []
        self.events = self.events_while_down = 0
        #: Another watcher that is told too.
        self.next: Watcher | None = None

    def step(self, name: str, stimulus: contract.Stimulus, effects: contract.Effects) -> None:
        """A broker has handled something, and this came of it."""
        if self.next is not None:
            self.next(name, stimulus, effects)
        for effect in effects:
            frame = effect.frame if isinstance(effect, contract.Send) else None
            if isinstance(frame, Carry) and frame.source == name:
                self.anomalies += self._sent(name, frame)

    def _sent(self, name: str, frame: Carry) -> Iterator[Anomaly]:
        content = frame.content
        if isinstance(content, ReplayCopy):
            self._replays[frame.target, name, content.replay.request] = content
        elif isinstance(content, Resent):
            self._count(content.stream, len(content.data))
            yield from self._wrong_in_resent(name, content)
        elif isinstance(content, Answer | NotKept):
            asked = self._replays.get((name, frame.target, content.request))
            if asked is None or asked.stream == name:
                return
            if isinstance(content, Answer):
                self._count(asked.stream, len(content.data))
                yield from self._wrong_in_answer(name, frame.target, asked, content)
            elif content.oldest - 1 > self._deleted(asked.stream):
                text = f"{name} refuses ticks before {content.oldest}"
                yield Anomaly("wrongly-deleted", "", asked.stream, content.oldest, text)

    def _count(self, stream: str, events: int) -> None:
        self.events += events
        if self._world.hosts[stream].broker is None:
            self.events_while_down += events

    def _confirmed(self, stream: str) -> Mapping[int, bytes]:
        return self._world.hosts[stream].disk.ever_synced

    def _wrong_in_resent(self, name: str, resent: Resent) -> Iterator[Anomaly]:
        stream, confirmed = resent.stream, self._confirmed(resent.stream)
        newest = max(confirmed, default=0)
        if resent.head > newest:
            text = f"{name} names head {resent.head}, but {newest} is confirmed"
            yield Anomaly("stale-read", "", stream, resent.head, text)
        events = {datum.tick: datum.body for datum in resent.data}
        ticks = [*events]
        ticks += [tick for first, last in resent.silent for tick in range(first, last + 1)]
        for hole in resent.withheld:
            if hole.reason != "retention":
                ticks += range(hole.first, hole.last + 1)
            elif hole.last > self._deleted(stream):
                text = f"{name} withholds {hole.first} to {hole.last}"
                yield Anomaly("wrongly-deleted", "", stream, hole.last, text)
        for tick in ticks:
            if tick not in confirmed:
                text = f"{name} serves tick {tick}, which is not confirmed"
                yield Anomaly("stale-read", "", stream, tick, text)
            elif _body(confirmed[tick]) != events.get(tick):
                text = f"{name} serves another event, or none"
                yield Anomaly("copy-differs", "", stream, tick, text)

    def _wrong_in_answer(
        self, name: str, edge: str, asked: ReplayCopy, answer: Answer
    ) -> Iterator[Anomaly]:
        stream, confirmed = asked.stream, self._confirmed(asked.stream)
        newest = max(confirmed, default=0)
        if max(answer.through, answer.head) > newest or answer.through < answer.first:
            text = f"{name} answers up to {answer.through} of {answer.head}; {newest} is confirmed"
            yield Anomaly("stale-read", "", stream, answer.through, text)
            return
        events = {datum.tick: datum.body for datum in answer.data}
        filters = [Filter.parse(each) for each in asked.replay.filters]
        distance = self._world.hosts[name].config.network.distance(stream, edge)
        for tick in range(answer.first, answer.through + 1):
            body = _body(confirmed[tick]) if tick in confirmed else None
            wanted = body if body is not None and _is_wanted(body, filters, distance) else None
            if wanted != events.get(tick):
                text = f"{name} leaves out an event, or sends another one"
                yield Anomaly("left-out", "", stream, tick, text)


def _body(record: bytes) -> bytes | None:
    decoded = decode_record(record)
    return decoded.body if isinstance(decoded, EventRecord) else None


def _is_wanted(body: bytes, filters: list[Filter], distance: int) -> bool:
    event = decode_event(body)
    hop_limit = event.control.hop_limit
    if hop_limit is not None and hop_limit < distance:
        return False
    return any(filter_.matches(event) for filter_ in filters)
