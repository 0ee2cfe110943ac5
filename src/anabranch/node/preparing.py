"""Filters and patterns that are read ahead, in a thread, before the frame that has them reaches the
core.

Parsing and normalising one filter may take a quarter of a second and cannot be interrupted; a
pattern takes longer. So a thread does it first. The interpreter gives the event loop its turns
meanwhile, and the core finds the filter made (`model.read_ahead`). Rules:

1. A frame with a long filter waits until that is made, and so do the frames behind it on the same
   connection. Short filters, of `SHORT_CHARACTERS`, are read by the core: they cost little.
2. It is for speed only: what is not prepared is read by the core, with the same outcome.
3. What was made for a frame is held until the frame has its turn, and is given to the core then:
   what others prepare meanwhile cannot push it out. Frames that wait for their turn hold the
   results of `READ_AHEAD_CHARACTERS_MAX` characters at most, or of one frame; further ones are not
   begun with before.
4. What the core refuses by its size alone is not read.

State: what was made for frames that wait, bounded by rule 3. Safe to lose.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from anabranch.core.origin.publisher_advertisements import advertisement_reading, refusal_of
from anabranch.core.patterns.join_points.records import pattern_reading
from anabranch.model.client_frames import Advertises, AnyClientFrame, Define, Subscribe
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
    """Reads filters and patterns ahead for one node. See the rules at the top of this module."""

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
