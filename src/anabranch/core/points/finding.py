"""Whether any broker has a pattern, or had it: asked before one is made.

1. All other brokers are asked, again and again, until one has it or each has answered. After
   `FIND_WITHIN_S` nobody waits any longer, and it is told who is silent.
2. Of two brokers that look for the same id, each to make it, the one whose name sorts first goes
   on. It tells the other that the pattern is coming; the other asks again. If the other was asked
   first, it says that it has nothing, and asks everybody anew, under a new number: what it was
   answered before does not count.
3. One that moves is seen at one end or the other: the giver has it until the taker does, and
   remembers then that it had. Who hears only that asks everybody once more; at worst a pattern is
   taken for gone, which refuses an id and makes nothing.

State: the searches. Safe to lose; who defines a pattern asks again.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from anabranch.core.asks import CarryTo
from anabranch.core.points.state import PointState
from anabranch.model.frames import FindPoint, PointFound

#: How long brokers are given to answer.
FIND_WITHIN_S = 5.0

Answer = Literal["here", "coming", "gone", "no"]


class Told(NamedTuple):
    """What came out of a search."""

    #: The broker that has it; "" if none does.
    place: str = ""
    text: str = ""
    #: Whether some broker had it.
    was_there: bool = False
    #: Those that have not answered, if that is why nothing was found.
    silent: tuple[str, ...] = ()


Continue = Callable[[float, Told], None]


class _Search:
    """One question to all."""

    __slots__ = (
        "again_at",
        "is_claim",
        "pattern",
        "session",
        "then",
        "unanswered",
        "until",
        "was_there",
    )

    def __init__(
        self, session: int, pattern: str, is_claim: bool, until: float, then: Continue
    ) -> None:
        self.session = session
        self.pattern = pattern
        self.is_claim = is_claim
        self.until = until
        self.then = then
        self.unanswered: set[str] = set()
        self.was_there = False
        self.again_at = 0.0


class Finding:
    """Asks other brokers for patterns, and answers them. See the top of this module."""

    def __init__(self, state: PointState) -> None:
        self._state = state
        # Numbers grow over lives too: an answer to a question of an earlier one is none.
        self._number = state.outlook.life
        self._searches: dict[int, _Search] = {}

    def sessions(self) -> list[int]:
        """The sessions that searches are for, one for each search."""
        return [each.session for each in self._searches.values()]

    def find(
        self, now: float, session: int, pattern_id: str, *, is_claim: bool, then: Continue
    ) -> None:
        """Ask for a pattern; `then` is told. With `is_claim` it is made if nobody has it."""
        search = _Search(session, pattern_id, is_claim, now + FIND_WITHIN_S, then)
        self._begin(now, search)

    def new_number(self) -> int:
        """A number for a question that no other one has."""
        self._number += 1
        return self._number

    def _begin(self, now: float, search: _Search) -> None:
        self._searches[self.new_number()] = search
        search.unanswered = set(self._state.others)
        search.was_there = False
        self._ask(now, self._number)

    def _ask(self, now: float, number: int) -> None:
        search = self._searches[number]
        search.again_at = now + self._state.options.pattern_again_s
        question = FindPoint(number, search.pattern, search.is_claim)
        self._state.out += [CarryTo(edge, question) for edge in sorted(search.unanswered)]
        if not search.unanswered:
            self._end(now, number, Told(was_there=search.was_there))

    def _end(self, now: float, number: int, told: Told) -> None:
        self._searches.pop(number).then(now, told)

    def client_left(self, session: int) -> None:
        """Nobody waits there any more."""
        searches = self._searches.items()
        self._searches = {number: each for number, each in searches if each.session != session}

    # -- other brokers ----------------------------------------------------------------------------

    def asked(self, now: float, source: str, content: FindPoint) -> None:
        """Another broker wants to know."""
        answer = self._known(content.pattern)
        if answer == "no" and content.is_claim:
            rivals = self._claims(content.pattern)
            if rivals and self._state.outlook.name < source:
                answer = "coming"
            else:
                for number in rivals:
                    self._begin(now, self._searches.pop(number))
        record = self._state.record(content.pattern)
        text = record.text if record is not None and answer == "here" else ""
        told = PointFound(content.request, content.pattern, answer, text)
        self._state.out.append(CarryTo(source, told))

    def _claims(self, pattern_id: str) -> list[int]:
        """Searches of this broker for a pattern that it is to make."""
        every = self._searches.items()
        return [number for number, each in every if each.is_claim and each.pattern == pattern_id]

    def _known(self, pattern_id: str) -> Answer:
        state = self._state
        record = state.record(pattern_id)
        if record is None:
            return "gone" if pattern_id in state.gone else "no"
        if record.is_over:
            return "gone"
        return "here" if record.goes_to or state.has_begun(pattern_id) else "coming"

    def answered(self, now: float, source: str, content: PointFound) -> None:
        """Another broker says what it knows."""
        search = self._searches.get(content.request)
        if search is None or search.pattern != content.pattern or content.answer == "coming":
            return
        if content.answer == "here":
            self._end(now, content.request, Told(source, content.text))
            return
        search.unanswered.discard(source)
        search.was_there |= content.answer == "gone"
        if not search.unanswered:
            self._end(now, content.request, Told(was_there=search.was_there))

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Ask again, or give up."""
        for number, search in list(self._searches.items()):
            if search.until <= now:
                silent = tuple(sorted(search.unanswered))
                self._end(now, number, Told(was_there=search.was_there, silent=silent))
            elif search.again_at <= now:
                self._ask(now, number)

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        times = [min(each.again_at, each.until) for each in self._searches.values()]
        return min(times, default=None)
