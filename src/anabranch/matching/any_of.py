"""Any of some filters: does an event match one of them, whichever it is?

    promised = AnyOf([Filter.parse("symbol = 'IBM'"), Filter.parse("price < 50")])
    promised.matches(Event({"price": 49}))                                      # True

A publisher advertises filters and is held to them, event by event, by its client and by its broker.
Rules:

1. The answer is that of asking every filter in turn.
2. A few filters are asked in turn. More than that have an index, but only after so many events that
   it has paid off: making one takes about as long as asking them all about so many.
3. An index with kernels is worth it for fewer filters, and loads a compiler if it is the first one
   in its process. A client's is without them: it shares its process with an application, and
   its loop must not stand still for that long.
4. What an index has no room for is asked in turn beside it. The filter that matched last is asked
   first: where many match, it is likely to do so again.
5. The filters may be many and long; their text is that of the first few.

State: an index, made of the filters; `forget_index` gives its memory back. One thread at a time.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import Envelope
from anabranch.model.errors import FilterLimitError
from anabranch.model.event import Event
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits

#: Filters that are not worth an index, with kernels and without.
FEW = 16
FEW_WITHOUT_KERNELS = 128
#: Events after which more filters are.
PAYS_OFF_AFTER = 50
#: Filters that are named, and characters of all of them.
_NAMED_MAX = 3
_CHARACTERS_MAX = 200


class AnyOf:
    """Some filters. See the rules at the top of this module."""

    __slots__ = ("_asked", "_beside", "_engine", "_index", "_likely", "_limits", "_text", "filters")

    def __init__(
        self,
        filters: Iterable[Filter],
        limits: Limits = DEFAULT_LIMITS,
        engine: EngineName = "auto",
    ) -> None:
        self.filters = tuple(filters)
        self._limits = limits
        self._engine: EngineName = engine
        #: The filter that matched last, if one did.
        self._likely: tuple[Filter, ...] = ()
        self._index: MatchIndex | None = None
        #: Filters that the index has no room for; all of them while there is none.
        self._beside = self.filters
        #: Events since there is no index.
        self._asked = 0
        self._text = ""

    def matches(self, event: Event) -> bool:
        """Whether the event matches one of the filters."""
        self._count(1)
        if any(filter.matches(event) for filter in self._likely):
            return True
        found = [] if self._index is None else self._index.match(event)[:1]
        likely: Iterable[Filter] = (self.filters[place] for place in found if type(place) is int)
        if not found:
            likely = (filter for filter in self._beside if filter.matches(event))
        self._likely = tuple(islice(likely, 1))
        return bool(self._likely)

    def outside(self, envelopes: Sequence[Envelope]) -> list[int]:
        """The places of those events that match none of the filters."""
        self._count(len(envelopes))
        left: Iterable[int] = range(len(envelopes))
        if self._index is not None:
            left = self._not_found(self._index, envelopes)
        if self._beside:
            left = [place for place in left if not self._is_beside(envelopes[place])]
        return list(left)

    @property
    def is_indexed(self) -> bool:
        """Whether there is an index now."""
        return self._index is not None

    def forget_index(self) -> None:
        """Give back what an index takes; it is made again when it has paid off again."""
        self._index, self._beside, self._asked = None, self.filters, 0

    def __str__(self) -> str:
        if not self._text:
            named = " or ".join(map(str, self.filters[:_NAMED_MAX]))[:_CHARACTERS_MAX]
            more = len(self.filters) - _NAMED_MAX
            self._text = f"{named}, or one of {more} more" if more > 0 else named
        return self._text or "nothing that can be"

    def _not_found(self, index: MatchIndex, envelopes: Sequence[Envelope]) -> list[int]:
        """The places of events that nothing in the index matches."""
        found = index.destinations_of([each.encoded for each in envelopes], self._limits)
        return [
            place
            for place, known in enumerate(found)
            if not (index.destinations(envelopes[place]) if known is None else known)
        ]

    def _is_beside(self, envelope: Envelope) -> bool:
        # Filters check a mapping, each anew; an event was checked.
        event = Event.of_checked_parts(envelope.header, envelope.attributes(), b"")
        return any(filter.matches(event) for filter in self._beside)

    def _count(self, events: int) -> None:
        """So many events are asked about: make an index if that pays off (rule 2)."""
        few = FEW_WITHOUT_KERNELS if self._engine == "numpy" else FEW
        if self._index is not None or len(self.filters) <= few:
            return
        self._asked += events
        if self._asked > PAYS_OFF_AFTER:
            self._make_index()

    def _make_index(self) -> None:
        index, beside = MatchIndex(self._engine, self._limits), []
        for number, filter in enumerate(self.filters):
            try:
                # One destination for all, so that a search ends with the first that matches.
                index.add(number, filter, destination="any")
            except FilterLimitError:
                beside.append(filter)
        self._index, self._beside = index, tuple(beside)
