"""A sieve: matches one filter against very many encoded events, mostly without decoding them.

    sieve = Sieve(Filter.parse("symbol = 'IBM' AND price < 50"))
    verdicts = sieve.sift(messages, stops)

This is an index of one filter, used in the opposite direction: it finds the events that a filter
matches. Events are given as their attribute maps, concatenated, in MessagePack.

Rules

1. A verdict is 1 (the event matches), 0 (it does not) or -1: the kernels cannot decide, because a
   value is unusual or the filter has a condition of a rare form. The caller evaluates the filter.
2. The maps were validated when their events were published. For any content, no byte outside of
   them is read; but duplicate names are detected only if the filter uses the name.
3. Not thread-safe.

State: an index, built from the filter; safe to lose. Requires numba.
"""

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.compiled import CompiledEngine
from anabranch.matching.engine import Words
from anabranch.matching.index import MatchIndex
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits


class Sieve:
    """One filter. See the rules at the top of this module."""

    def __init__(self, filter: Filter, limits: Limits = DEFAULT_LIMITS) -> None:
        self.filter = filter
        index = MatchIndex(engine="numba", limits=limits)
        index.add(0, filter)
        engine = index._engine
        assert isinstance(engine, CompiledEngine)
        self._index, self._engine = index, engine

    def sift(self, messages: NDArray[np.uint8], stops: Words) -> NDArray[np.int8]:
        """A verdict on each of the events whose attributes end at `stops` among the messages.

        After that the messages are read-only."""
        return self._engine.sift(messages, stops)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes
