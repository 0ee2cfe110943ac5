"""A disjunction of filters: checks whether an event matches any of them.

    promised = AnyOf([Filter.parse("symbol = 'IBM'"), Filter.parse("price < 50")])
    promised.matches(Event({"price": 49}))                                      # True

A publisher advertises filters; its client and its broker check every event against them.

Rules

1. The result equals that of evaluating every filter in turn.
2. A few filters are evaluated in turn. For more, an index is built, but only after enough events to
   pay off: building it takes about as long as evaluating all filters for that number of events.
   With kernels, the number of conjunctions counts, not that of filters.
3. An index with kernels pays off for fewer filters, but loads a compiler if it is the first in its
   process. A client uses none: it shares its process with an application, whose event loop must not
   block that long.
4. Filters that do not fit into the index are evaluated in turn beside it. The filter that matched
   last is evaluated first, because it is likely to match again.
5. The filters may be many and long; their text shows only the first few.
6. All work can be done in slices (`looking`), for an event loop: the index is built conjunction by
   conjunction, and an event is checked filter by filter.

State: an index, built from the filters; `forget_index` releases its memory. Not thread-safe.
"""

from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from anabranch.model.encoding import Envelope
from anabranch.model.errors import FilterLimitError
from anabranch.model.event import Event
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from anabranch.matching.engine import EngineName
    from anabranch.matching.index import MatchIndex

#: Filters that are not worth an index, with kernels and without.
FEW = 16
FEW_WITHOUT_KERNELS = 128
#: Events after which more filters are.
PAYS_OFF_AFTER = 50
#: Conjunctions that were asked about events, after which an index is made in any case.
PAYS_OFF_AFTER_CHECKS = 50_000
#: What a portion costs at most, in microseconds of an ordinary machine, unless one filter costs
#: more.
_PORTION_WORK = 1_000
#: What it costs to ask one conjunction about an event; of how many bytes of the event it costs as
#: much again. Searches of filters add one for each unit of their weight and that many bytes.
_ASK_WORK = 1
_ASKED_BYTES = 2_048
_SEARCHED_BYTES = 1_024
#: What it costs to put a conjunction into an index, and to look for an event there; of how many
#: conjunctions, and of how many bytes of the event, the latter costs one more.
_ADD_WORK = 100
_FIND_WORK = 30
_FOUND_AT_ONCE = 256
_FOUND_BYTES = 100
#: Filters that are named, and characters of all of them.
_NAMED_MAX = 3
_CHARACTERS_MAX = 200


class AnyOf:
    """Some filters. See the rules at the top of this module."""

    __slots__ = (
        "_asked",
        "_beside",
        "_engine",
        "_index",
        "_likely",
        "_limits",
        "_size",
        "_sized",
        "_text",
        "filters",
    )

    def __init__(
        self,
        filters: Iterable[Filter],
        limits: Limits = DEFAULT_LIMITS,
        engine: "EngineName" = "auto",
    ) -> None:
        self.filters = tuple(filters)
        self._limits = limits
        self._engine: EngineName = engine
        #: Each filter with its conjunctions, 1 if they are too many; and of all of them.
        self._sized = tuple((each, _conjunctions_of(each)) for each in self.filters)
        self._size = sum(size for _, size in self._sized)
        #: The filter that matched last, if one did.
        self._likely: tuple[Filter, ...] = ()
        self._index: MatchIndex | None = None
        #: Filters that the index has no room for; all of them while there is none.
        self._beside = self._sized
        #: Events checked since the index was dropped.
        self._asked = 0
        self._text = ""

    def matches(self, event: Event) -> bool:
        for _ in self._count(1):
            pass
        if any(filter.matches(event) for filter in self._likely):
            return True
        found = [] if self._index is None else self._index.match(event)[:1]
        likely: Iterable[Filter] = map(self._filter_at, found)
        if not found:
            likely = (filter for filter, _ in self._beside if filter.matches(event))
        self._likely = tuple(islice(likely, 1))
        return bool(self._likely)

    def outside(self, envelopes: Sequence[Envelope]) -> list[int]:
        """The places of those events that match none of the filters."""
        work = self.looking(envelopes)
        while True:
            try:
                next(work)
            except StopIteration as end:
                found: list[int] = end.value
                return found

    def looking(self, envelopes: Sequence[Envelope]) -> Generator[int, None, list[int]]:
        """The same in portions: yields about how many microseconds of work each was."""
        yield from self._count(len(envelopes))
        left: Iterable[int] = range(len(envelopes))
        index = self._index
        if index is not None:
            left = []
            for first, last, work in self._portions(envelopes):
                yield work
                for place in (yield from self._not_found(index, envelopes[first:last])):
                    left.append(first + place)
        if not self._beside:
            return list(left)
        outside = []
        for place in left:
            if not (yield from self._is_beside(envelopes[place])):
                outside.append(place)  # noqa: PERF401 - a comprehension cannot yield
        return outside

    def _portions(self, envelopes: Sequence[Envelope]) -> Iterator[tuple[int, int, int]]:
        """Where the portions that an index is asked about begin and end, and what they cost."""
        each = _FIND_WORK + self._size // _FOUND_AT_ONCE
        first = work = 0
        for place, envelope in enumerate(envelopes):
            work += each + len(envelope.encoded) // _FOUND_BYTES
            if work > _PORTION_WORK:
                yield first, place + 1, work
                first, work = place + 1, 0
        if work:
            yield first, len(envelopes), work

    def work_of(self, events: int) -> int:
        """The approximate cost of checking a number of events, in microseconds."""
        return events * (_FIND_WORK if self._index is not None else self._size)

    @property
    def is_indexed(self) -> bool:
        return self._index is not None

    def forget_index(self) -> None:
        """Give back what an index takes; it is made again when it has paid off again."""
        self._index, self._beside, self._asked = None, self._sized, 0

    def __str__(self) -> str:
        if not self._text:
            named = " or ".join(map(str, self.filters[:_NAMED_MAX]))[:_CHARACTERS_MAX]
            more = len(self.filters) - _NAMED_MAX
            self._text = f"{named}, or one of {more} more" if more > 0 else named
        return self._text or "nothing that can be"

    def _filter_at(self, found: Hashable) -> Filter:
        number = found[0] if isinstance(found, tuple) else found
        assert isinstance(number, int)
        return self.filters[number]

    def _not_found(
        self, index: "MatchIndex", envelopes: Sequence[Envelope]
    ) -> Generator[int, None, list[int]]:
        """The places of events that nothing in the index matches."""
        missing = []
        found = index.destinations_of([each.encoded for each in envelopes], self._limits)
        for place, known in enumerate(found):
            if known is None:
                is_found = yield from self._is_found(index, envelopes[place])
            else:
                is_found = bool(known)
            if not is_found:
                missing.append(place)
        return missing

    def _is_found(self, index: "MatchIndex", envelope: Envelope) -> Generator[int, None, bool]:
        """Whether something in the index matches, check by check."""
        sure, checks = index.narrow(envelope)
        if sure:
            return True
        attributes = envelope.attributes()
        work = 0
        for _, check in checks:
            work += check.work(len(envelope.encoded))
            if work > _PORTION_WORK:
                yield work
                work = 0
            if check(attributes):
                return True
        yield work
        return False

    def _is_beside(self, envelope: Envelope) -> Generator[int, None, bool]:
        # Every filter would validate a mapping again; an `Event` is already validated.
        event = Event.of_checked_parts(envelope.header, envelope.attributes(), b"")
        each = _ASK_WORK + len(envelope.encoded) // _ASKED_BYTES
        searched = len(envelope.encoded) // _SEARCHED_BYTES
        work = 0
        for filter, size in self._beside:
            work += each * size + searched * filter.search_weight
            if work > _PORTION_WORK:
                yield work
                work = 0
            if filter.matches(event):
                return True
        yield work
        return False

    def _count(self, events: int) -> Iterator[int]:
        """So many events are asked about: make an index if that pays off (rule 2)."""
        is_plain = self._engine == "numpy"
        size = len(self.filters) if is_plain else self._size
        if self._index is not None or size <= (FEW_WITHOUT_KERNELS if is_plain else FEW):
            return
        self._asked += events
        has_cost = not is_plain and self._asked * size > PAYS_OFF_AFTER_CHECKS
        if has_cost or self._asked > PAYS_OFF_AFTER:
            yield from self._make_index()

    def _make_index(self) -> Iterator[int]:
        # Most clients never need an index, and numpy is slow to load.
        from anabranch.matching.index import MatchIndex  # noqa: PLC0415

        index, beside = MatchIndex(self._engine, self._limits), []
        work = 0
        for number, (filter, size) in enumerate(self._sized):
            try:
                # One destination for all, so that a search ends with the first that matches.
                if _ADD_WORK * size <= _PORTION_WORK:
                    index.add(number, filter, destination="any")
                    work += _ADD_WORK * size
                else:
                    for place in range(size):
                        index.add((number, place), filter, destination="any", place=place)
                        work += _ADD_WORK
                        if work > _PORTION_WORK:
                            yield work
                            work = 0
            except FilterLimitError:
                beside.append((filter, size))
            if work > _PORTION_WORK:
                yield work
                work = 0
        self._index, self._beside = index, tuple(beside)


def _conjunctions_of(filter: Filter) -> int:
    try:
        return len(filter.conjunctions) or 1
    except FilterLimitError:
        return 1
