"""Whose frames reach the core next, when several connections have some.

The core handles one stimulus at a time, and that may take many steps (`core.broker`). Meanwhile the
connections keep their frames and read no more. Rules:

1. First come, first served: a connection with frames queues behind all that queued before. When its
   turn comes it hands frames on for a few milliseconds, or until the core is left with work; then
   it queues again. So a client that asks for very much delays the others by one of its frames, not
   by all of them.
2. Every `SIGN_S` each connection in the queue gives a sign of life: a neighbour must not seem dead
   because nothing is read from it, and the broker must not seem dead to a client that waits.

State: who waits. As safe to lose as the connections.
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
        #: Those that wait for something else before they wait for their turn.
        self._others: dict[int, _Waiter] = {}
        self._last_number = 0
        self._is_coming = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def are_wanted(self) -> bool:
        """Whether somebody waits."""
        return bool(self._queue)

    def wait(self, go_on: Callable[[], None], sign: Callable[[], None]) -> None:
        """Call this when its turn has come; and give that sign of life until then."""
        self._queue.append(_Waiter(go_on, sign))
        self._watch()
        self.give()

    def wait_for(
        self, future: "Future[None]", go_on: Callable[[], None], sign: Callable[[], None]
    ) -> None:
        """The same, but not before something is done in another thread."""
        self._last_number += 1
        number = self._last_number
        self._others[number] = _Waiter(go_on, sign)
        self._watch()

        def done(_future: "Future[None]") -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._come, number)

        future.add_done_callback(done)

    def _come(self, number: int) -> None:
        waiter = self._others.pop(number, None)
        if waiter is not None:
            self.wait(*waiter)

    def give(self) -> None:
        """The core may be free: let those have their turn who wait."""
        if self._queue and not self._is_coming and not self.is_working():
            self._is_coming = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_coming = False
        if self._queue and not self.is_working():
            self._queue.popleft().go_on()
        self.give()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(SIGN_S, self._signs)

    def _signs(self) -> None:
        self._timer = None
        for waiter in (*self._queue, *self._others.values()):
            waiter.sign()
        if self._queue or self._others:
            self._watch()

    def close(self) -> None:
        """Nobody has a turn any more."""
        self._queue.clear()
        self._others.clear()
        if self._timer is not None:
            self._timer.cancel()


# Large frames of clients in parts, so that no single one makes a long step.
#
# The events of one frame are independent but for their order, and so are acknowledgements. So a
# frame with very many of them is handled as several frames. If a later part breaks the protocol,
# the client is cut, and the earlier parts stay handled.
#
# Pure functions; no state.


#: Events of one part, and bytes of them; at least one.
EVENTS_MAX = 256
BYTES_MAX = 1024 * 1024
#: Ticks of one part, and streams that have them.
TICKS_MAX = 2_048


def parts_of(frame: AnyClientFrame) -> list[AnyClientFrame]:
    """The frames that a large frame stands for; none if it is not large."""
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
    room = TICKS_MAX
    for stream, ticks in frame.ticks.items():
        every = list(ticks.items())
        # One less: the stream counts too, whether or not it has ticks.
        for first in range(0, len(every) or 1, TICKS_MAX - 1):
            some = dict(every[first : first + TICKS_MAX - 1])
            if len(some) + 1 > room:
                yield Ack(part)
                part, room = {}, TICKS_MAX
            part[stream] = some
            room -= len(some) + 1
    yield Ack(part)


SHORT_CHARACTERS = 96


class Preparation:
    """What is read ahead for one frame. `use` it when the frame has its turn, or `drop` it."""

    __slots__ = ("_every", "_readings", "characters", "done")

    def __init__(self, every: "FilterPreparation", readings: "list[Reading[Any, Any]]") -> None:
        self._every = every
        self._readings = readings
        self.characters = sum(each.characters for each in readings)
        #: Has a result when everything was read.
        self.done: Future[None] = Future()

    def read(self) -> None:
        """Read it; in the thread."""
        try:
            for each in self._readings:
                each.read()
        finally:
            self.done.set_result(None)

    def use(self) -> None:
        """The frame has its turn: the core finds what was made."""
        keep_together(self._readings)
        self.drop()

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self._every.over(self)


class FilterPreparation:
    """Filters and patterns that are read ahead, in a thread, before the frame that has them reaches
    the core.

    Parsing and normalising one filter may take a quarter of a second and cannot be interrupted; a
    pattern takes longer. So a thread does it first. The interpreter gives the event loop its turns
    meanwhile, and the core finds the filter made (`model.read_ahead`). Rules:

    1. A frame with a long filter waits until that is made, and so do the frames behind it on the
       same connection. Short filters, of `SHORT_CHARACTERS`, are read by the core: they cost
       little.
    2. It is for speed only: what is not prepared is read by the core, with the same outcome.
    3. What was made for a frame is held until the frame has its turn, and is given to the core
       then: what others prepare meanwhile cannot push it out. Frames that wait for their turn hold
       the results of `READ_AHEAD_CHARACTERS_MAX` characters at most, or of one frame; further ones
       are not begun with before.
    4. What the core refuses by its size alone is not read.

    State: what was made for frames that wait, bounded by rule 3. Safe to lose.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._executor: ThreadPoolExecutor | None = None
        #: Those that are not begun, the first first; those that are, and their characters.
        self._waiting: deque[Preparation] = deque()
        self._begun: set[Preparation] = set()
        self._begun_characters = 0

    def begin(self, frame: AnyClientFrame | LinkFrame) -> Preparation | None:
        """Read the long texts of a frame; None if there are none, or all are known."""
        readings = list(_readings_in(frame, self._limits))
        if all(each.is_made for each in readings):
            return None
        made = Preparation(self, readings)
        self._waiting.append(made)
        self._go_on()
        return made

    def _go_on(self) -> None:
        """Begin with as many as there is room for (rule 3)."""
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
        """Nobody waits for this one any more, or its frame has had its turn."""
        if preparation in self._begun:
            self._begun.remove(preparation)
            self._begun_characters -= preparation.characters
            self._go_on()
        elif preparation in self._waiting:
            self._waiting.remove(preparation)

    def close(self) -> None:
        """Read no more."""
        self._waiting.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _readings_in(
    frame: AnyClientFrame | LinkFrame, limits: Limits
) -> "Iterator[Reading[Any, Any]]":
    if isinstance(frame, Advertises):
        # Many short ones take as long as a long one.
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
        # What is advertised comes all at once, interest in slices.
        is_long = isinstance(frame, Advertise) and sum(map(len, texts)) > SHORT_CHARACTERS
        for text in texts:
            is_read = is_long or len(text) > SHORT_CHARACTERS
            if is_read and (reading := Filter.reading(text, limits)):
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
