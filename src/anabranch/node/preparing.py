"""Filters that are read ahead, in a thread, before the frame that names them reaches the core.

Parsing and normalising one filter may take a quarter of a second and cannot be interrupted. So a
thread does it first. The interpreter gives the event loop its turns meanwhile, and the core finds
the filter made (`Filter.prepare`). Rules:

1. A frame that names a long filter waits until that is made, and so do the frames behind it on the
   same connection. Short filters, of `SHORT_CHARACTERS`, are read by the core: they cost little.
2. It is for speed only: a filter that is not prepared is read by the core, with the same outcome.

State: filters that are prepared, bounded in `model.filter`. Safe to lose.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from anabranch.model.client_frames import Advertises, AnyClientFrame, Subscribe
from anabranch.model.filter import Filter
from anabranch.model.frames import InterestChange, InterestState, LinkFrame
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import Advertise, Bind

SHORT_CHARACTERS = 96


class FilterPreparation:
    """Reads filters ahead for one node. See the rules at the top of this module."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._executor: ThreadPoolExecutor | None = None

    def begin(self, frame: AnyClientFrame | LinkFrame) -> "Future[None] | None":
        """Read the long filters of a frame; None if there are none, or all are known."""
        texts = [
            text
            for text in _filters_in(frame)
            if len(text) > SHORT_CHARACTERS and not Filter.is_prepared(text, self._limits)
        ]
        if not texts:
            return None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "preparing")
        return self._executor.submit(self._prepare, texts)

    def _prepare(self, texts: list[str]) -> None:
        for text in texts:
            Filter.prepare(text, self._limits)

    def close(self) -> None:
        """Read no more."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _filters_in(frame: AnyClientFrame | LinkFrame) -> Iterator[str]:
    if isinstance(frame, Subscribe):
        yield frame.filter
    elif isinstance(frame, Advertises):
        yield from frame.filters
    elif isinstance(frame, InterestChange | Bind):
        yield from (each.text for each in frame.plus)
        yield from (each.text for each in frame.minus)
    elif isinstance(frame, InterestState):
        yield from (each.text for each in frame.conjunctions)
    elif isinstance(frame, Advertise):
        yield from (each.text for each in frame.plus)
