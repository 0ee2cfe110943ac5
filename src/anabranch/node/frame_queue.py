"""The frame queue: which connection may pass frames to the core next, and work done ahead of it.

The core handles one stimulus at a time, which may take many steps (`core.broker`). Meanwhile the
connections keep their frames and stop reading. Rules:

1. First come, first served: a connection with frames queues behind all that queued before. At its
   turn it passes frames on for a few milliseconds, or until the core is left with work; then it
   queues again. So a client with expensive requests delays the others by one of its frames, not by
   all of them.
2. Every `SIGN_S` each queued connection signals life: a neighbour must not seem dead because
   nothing is read from it, and the broker must not seem dead to a waiting client.

Large frames are split (`parts_of`), and long filters are parsed ahead in a thread
(`FilterPreparation`), so that no single frame causes a long step.

State: queued connections. As safe to lose as the connections.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from anabranch.core.origin.publisher_advertisements import advertisement_reading, refusal_of
from anabranch.core.patterns.join_points.records import pattern_reading
from anabranch.model.client_frames import (
    Ack,
    Advertises,
    AnyClientFrame,
    Define,
    Publish,
    Subscribe,
)
from anabranch.model.filter import Filter
from anabranch.model.frames import (
    Carry,
    InterestChange,
    InterestState,
    LinkFrame,
    Replay,
    TakePoint,
)
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import Advertise, Bind
from anabranch.model.read_ahead import READ_AHEAD_CHARACTERS_MAX, Reading, keep_together

SIGN_S = 0.5


class _Waiter(NamedTuple):
    go_on: Callable[[], None]
    sign: Callable[[], None]


class FrameQueue:
    """The queue for the core of one node. See the rules at the top of this module."""

    def __init__(self, is_working: Callable[[], bool]) -> None:
        #: Whether the core is at work.
        self.is_working = is_working
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiter] = deque()
        #: Connections that wait for something else before they queue.
        self._others: dict[int, _Waiter] = {}
        self._last_number = 0
        self._is_coming = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def are_wanted(self) -> bool:
        """Whether a connection is queued."""
        return bool(self._queue)

    def wait(self, go_on: Callable[[], None], sign: Callable[[], None]) -> None:
        """Queue `go_on` for its turn; call `sign` regularly until then."""
        self._queue.append(_Waiter(go_on, sign))
        self._start_signs()
        self.give()

    def wait_for(
        self, future: "Future[None]", go_on: Callable[[], None], sign: Callable[[], None]
    ) -> None:
        """Queue `go_on` once a future in another thread is done."""
        self._last_number += 1
        number = self._last_number
        self._others[number] = _Waiter(go_on, sign)
        self._start_signs()

        def done(_future: "Future[None]") -> None:
            with suppress(RuntimeError):  # the loop is closed, and no connection waits
                self._loop.call_soon_threadsafe(self._queue_again, number)

        future.add_done_callback(done)

    def _queue_again(self, number: int) -> None:
        waiter = self._others.pop(number, None)
        if waiter is not None:
            self.wait(*waiter)

    def give(self) -> None:
        """The core may be idle: give the next connection its turn."""
        if self._queue and not self._is_coming and not self.is_working():
            self._is_coming = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_coming = False
        if self._queue and not self.is_working():
            self._queue.popleft().go_on()
        self.give()

    def _start_signs(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(SIGN_S, self._signs)

    def _signs(self) -> None:
        self._timer = None
        for waiter in (*self._queue, *self._others.values()):
            waiter.sign()
        if self._queue or self._others:
            self._start_signs()

    def close(self) -> None:
        """Drop all queued connections."""
        self._queue.clear()
        self._others.clear()
        if self._timer is not None:
            self._timer.cancel()


#: Limits of one part: events and their bytes, but at least one event.
EVENTS_MAX = 256
BYTES_MAX = 1024 * 1024
#: Limit of one part: ticks, plus the streams that have them.
TICKS_MAX = 2_048


def parts_of(frame: AnyClientFrame) -> list[AnyClientFrame]:
    """Split a large frame into frames that are handled separately; empty if it is not large.

    Events in one frame are independent except for their order, and so are acknowledgements. If a
    later part violates the protocol, the client is disconnected and the earlier parts stay
    handled."""
    if isinstance(frame, Publish):
        bodies = frame.bodies
        if len(bodies) > EVENTS_MAX or sum(map(len, bodies)) > BYTES_MAX:
            return list(_of_publish(bodies)) if len(bodies) > 1 else []
    elif isinstance(frame, Ack) and _size_of(frame) > TICKS_MAX:
        return list(_of_ack(frame))
    return []


def _size_of(frame: Ack) -> int:
    return len(frame.ticks) + sum(map(len, frame.ticks.values()))


def _of_publish(bodies: list[bytes]) -> Iterator[Publish]:
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and (len(part) >= EVENTS_MAX or size + len(body) > BYTES_MAX):
            yield Publish(part)
            part, size = [], 0
        part.append(body)
        size += len(body)
    yield Publish(part)


def _of_ack(frame: Ack) -> Iterator[Ack]:
    part: dict[str, dict[str, int]] = {}
    left = TICKS_MAX
    for stream, ticks in frame.ticks.items():
        items = list(ticks.items())
        # One less, because the stream counts too, even without ticks.
        for first in range(0, len(items) or 1, TICKS_MAX - 1):
            some = dict(items[first : first + TICKS_MAX - 1])
            if len(some) + 1 > left:
                yield Ack(part)
                part, left = {}, TICKS_MAX
            part[stream] = some
            left -= len(some) + 1
    yield Ack(part)


SHORT_CHARACTERS = 96


class Preparation:
    """Texts parsed ahead for one frame. Call `use` at the frame's turn, or `drop`."""

    __slots__ = ("_preparations", "_readings", "characters", "done")

    def __init__(
        self, preparations: "FilterPreparation", readings: "list[Reading[Any, Any]]"
    ) -> None:
        self._preparations = preparations
        self._readings = readings
        self.characters = sum(each.characters for each in readings)
        #: Done when everything is parsed.
        self.done: Future[None] = Future()

    def read(self) -> None:
        """Parse the texts; runs in the thread."""
        try:
            for each in self._readings:
                each.read()
        finally:
            self.done.set_result(None)

    def use(self) -> None:
        """Make the results available to the core, at the frame's turn."""
        keep_together(self._readings)
        self.drop()

    def drop(self) -> None:
        """The results are not needed any longer."""
        self._preparations.over(self)


class FilterPreparation:
    """Parses filters and patterns in a thread before their frame reaches the core.

    Parsing and normalising one filter may take a quarter of a second and cannot be interrupted; a
    pattern takes longer. So a thread does it first. The interpreter switches to the event loop
    meanwhile, and the core finds the parsed filter (`model.read_ahead`). Rules:

    1. A frame with a long filter waits until the filter is parsed, and so do the frames behind it
       on the same connection. The core itself parses short filters, up to `SHORT_CHARACTERS`,
       because that is cheap.
    2. This is an optimisation only: the core parses unprepared texts with the same result.
    3. The results for a frame are held until its turn and then passed to the core, so that other
       preparations cannot evict them. Waiting frames hold the results of at most
       `READ_AHEAD_CHARACTERS_MAX` characters, or of one frame; further frames are not started
       before.
    4. Texts that the core refuses because of their size are not parsed.

    State: results for waiting frames, bounded by rule 3. Safe to lose.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._executor: ThreadPoolExecutor | None = None
        #: Preparations not started, oldest first; those started, and their characters.
        self._waiting: deque[Preparation] = deque()
        self._begun: set[Preparation] = set()
        self._begun_characters = 0

    def begin(self, frame: AnyClientFrame | LinkFrame) -> Preparation | None:
        """Parse the long texts of a frame; None if there are none, or all are parsed already."""
        readings = list(_readings_in(frame, self._limits))
        if all(each.is_made for each in readings):
            return None
        made = Preparation(self, readings)
        self._waiting.append(made)
        self._go_on()
        return made

    def _go_on(self) -> None:
        """Start as many as rule 3 permits."""
        while self._waiting:
            characters = self._begun_characters + self._waiting[0].characters
            if self._begun and characters > READ_AHEAD_CHARACTERS_MAX:
                break
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "preparing")
            begun = self._waiting.popleft()
            self._begun.add(begun)
            self._begun_characters = characters
            self._executor.submit(begun.read)

    def over(self, preparation: Preparation) -> None:
        """The results are not needed any longer, or their frame has had its turn."""
        if preparation in self._begun:
            self._begun.remove(preparation)
            self._begun_characters -= preparation.characters
            self._go_on()
        elif preparation in self._waiting:
            self._waiting.remove(preparation)

    def close(self) -> None:
        self._waiting.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _readings_in(
    frame: AnyClientFrame | LinkFrame, limits: Limits
) -> "Iterator[Reading[Any, Any]]":
    if isinstance(frame, Advertises):
        # Many short ones take as long as one long text.
        is_long = sum(map(len, frame.filters)) > SHORT_CHARACTERS
        if is_long and not refusal_of(frame.filters):
            for text in dict.fromkeys(frame.filters):
                yield advertisement_reading(text, limits)
    elif isinstance(frame, Define):
        if len(frame.text) > SHORT_CHARACTERS:
            yield pattern_reading(frame.pattern, frame.text, limits)
    elif isinstance(frame, Carry) and not isinstance(frame.content, Replay):
        record = frame.content.record if isinstance(frame.content, TakePoint) else None
        if record is not None and len(record.text) > SHORT_CHARACTERS:
            yield pattern_reading(record.id, record.text, limits)
    else:
        texts = dict.fromkeys(_filters_in(frame))
        # Edges and origins evaluate filters of subscriptions and replays; interest is only indexed.
        compiled = isinstance(frame, Subscribe | Carry)
        # The core parses all advertisements in one step, but interest in slices.
        is_long = isinstance(frame, Advertise) and sum(map(len, texts)) > SHORT_CHARACTERS
        for text in texts:
            is_read = is_long or len(text) > SHORT_CHARACTERS
            if is_read and (reading := Filter.reading(text, limits, compiled=compiled)):
                yield reading


def _filters_in(frame: AnyClientFrame | LinkFrame) -> Iterator[str]:
    if isinstance(frame, Subscribe):
        yield frame.filter
    elif isinstance(frame, Carry):
        yield from frame.content.filters if isinstance(frame.content, Replay) else ()
    elif isinstance(frame, InterestChange | Bind):
        yield from (each.text for each in frame.plus)
        yield from (each.text for each in frame.minus)
    elif isinstance(frame, InterestState):
        yield from (each.text for each in frame.conjunctions)
    elif isinstance(frame, Advertise):
        yield from (each.text for each in frame.plus)
