"""What may be reported of ALL as soon as its events are there, and what has to wait for its turn.

Without absences a match is reported when the last of its events comes, in whatever order. At most
`pattern_matches_max` end with one event, and which of them are the first is known only when time
has passed the event. Both can be had as long as there are few: what is known to end with an event
is counted, and reported at once while it is within the bound. Rules:

1. An event that more matches end with than the bound is *crowded*: nothing more that ends with it
   is reported at once. When the horizon has passed it, the first ones are looked for (`choosing`),
   and those reported that were not yet.
2. Where a search did not come to its end, all events that its matches could end with are crowded:
   the event itself; and, if it did not come in order, those up to a window behind it.
3. What was reported for an event is remembered until the horizon has passed it. There is room for
   `pattern_pending_max` of them. Beyond that the event is crowded: what ends with it waits.

So the first ones are reported whatever the order in which events come. Others are reported only if
they were found while no more than the bound were known.

State: what was reported for each event, and which events are crowded. Written down by `packing`.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from anabranch.core.patterns.combining import Filled
from anabranch.core.patterns.shelves import Entry

#: Stream and tick of an entry.
Place = tuple[str, int]


class Ending(NamedTuple):
    """A crowded entry, and what was reported of the matches that end with it."""

    entry: Entry
    reported: list[Filled]


class Endings:
    """Which matches may be reported at once. See the rules at the top of this module."""

    def __init__(self, matches_max: int, room: int) -> None:
        self._matches_max = matches_max
        self._room = room
        self._remembered = 0
        #: What was reported, and a heap of the entries that it ends with.
        self._reported: dict[Place, list[Filled]] = {}
        self._order: list[Entry] = []
        #: The crowded entries, and a heap of them.
        self._crowded: set[Place] = set()
        self._crowds: list[Entry] = []
        #: All entries from this time to that are crowded; None: there is no such time.
        self.times: tuple[int, int] | None = None

    def may_report(self, filled: Filled) -> bool:
        """Whether a match that was found is reported at once; it is remembered then."""
        last = max(filled[1])
        place = (last[1], last[2])
        if place in self._crowded or self._is_within(last):
            return False
        known = self._reported.get(place)
        if self._remembered >= self._room or (known and len(known) >= self._matches_max):
            self.crowd(last)
            return False
        if known is None:
            known = self._reported[place] = []
            heappush(self._order, last)
        known.append(filled)
        self._remembered += 1
        return True

    def crowd(self, entry: Entry) -> None:
        """More may end with an entry than is known."""
        place = (entry[1], entry[2])
        if place not in self._crowded:
            self._crowded.add(place)
            heappush(self._crowds, entry)

    def crowd_times(self, from_ns: int, to_ns: int) -> None:
        """More may end with all entries of these times than is known."""
        first, last = self.times or (from_ns, to_ns)
        self.times = (min(first, from_ns), max(last, to_ns))

    def _is_within(self, entry: Entry) -> bool:
        return self.times is not None and self.times[0] <= entry[0] <= self.times[1]

    @property
    def due_ns(self) -> int | None:
        """The first time of which an entry is crowded; None if none is."""
        times = [self.times[0]] if self.times else []
        return min([*times, *(entry[0] for entry in self._crowds[:1])], default=None)

    def passed(self, horizon_ns: int, kept: Iterable[Entry]) -> list[Ending]:
        """The horizon has come here: the crowded entries before it, in order. `kept` are those
        that a match can end with. What was reported for others is forgotten."""
        due: dict[Place, Entry] = {}
        while self._crowds and self._crowds[0][0] < horizon_ns:
            entry = heappop(self._crowds)
            due[entry[1], entry[2]] = entry
            self._crowded.discard((entry[1], entry[2]))
        if self.times and self.times[0] < horizon_ns:
            for entry in kept:
                if entry[0] < horizon_ns and self._is_within(entry):
                    due[entry[1], entry[2]] = entry
            to_ns = self.times[1]
            self.times = (horizon_ns, to_ns) if horizon_ns <= to_ns else None
        reported: dict[Place, list[Filled]] = {}
        while self._order and self._order[0][0] < horizon_ns:
            entry = heappop(self._order)
            place = (entry[1], entry[2])
            reported[place] = self._reported.pop(place)
            self._remembered -= len(reported[place])
        assert self._remembered >= 0, "more is forgotten than was remembered"
        return [Ending(each, reported.get((each[1], each[2]), [])) for each in sorted(due.values())]

    # -- the state as a whole, for `packing`

    @property
    def reported(self) -> list[Filled]:
        """What is remembered, in the order of what it ends with."""
        return [
            each for entry in sorted(self._order) for each in self._reported[entry[1], entry[2]]
        ]

    @property
    def crowded(self) -> list[Entry]:
        """The crowded entries, in order."""
        return sorted(self._crowds)

    def put_back(
        self, reported: list[Filled], crowded: list[Entry], times: tuple[int, int] | None
    ) -> None:
        """Go on from what another one had; this one is new."""
        for filled in reported:
            self.may_report(filled)
        for entry in crowded:
            self.crowd(entry)
        self.times = times
