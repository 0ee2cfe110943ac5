"""A sieve: one filter over very many encoded events, most of which are not decoded for that.

    sieve = Sieve(Filter.parse("symbol = 'IBM' AND price < 50"))
    verdicts = sieve.sift(messages, stops)

An index of one filter, asked in the other direction: not which filters want an event, but which
events a filter wants. Events come as their maps of attributes, one after the other, in MessagePack.
Rules:

1. A verdict is 1 (the event matches), 0 (it does not) or -1: the kernels cannot say, because a
   value is unusual or the filter has a condition of a rare form. The filter itself decides those.
2. The maps were checked when their events were published. Whatever they hold, no byte outside of
   them is read; but two values of one name are noticed only where the filter has that name.
3. One thread at a time.

State: an index, made of the filter; safe to lose. Needs numba.
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

        The messages cannot be written any more after that."""
        return self._engine.sift(messages, stops)

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        return self._index.nbytes
