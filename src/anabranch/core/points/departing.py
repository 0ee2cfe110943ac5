"""Where the join points of a broker go that departs.

    departs            FindPoint ─────────►  all others
                       PointFound ◄────────  who is there
                       and then, as in `moving`

Rules:

1. Only who has just answered is given anything: one that is away would keep a pattern from being
   detected, and this broker from being drained, until it is back. All others are asked about one
   of the patterns, whatever the routing; who says that it has it already is given nothing.
2. Answers are waited for until all have come, or for `pattern_again_s`, and count for as long.
   While join points are left, all are asked again then.
3. One that is refused goes to the next of those that answered; who refused is given nothing more
   before it has answered again.
4. A join point is given to one at a time, and taken back only if that one refuses (`moving`). If it
   dies before it has said so, it may have it on disk, and is waited for.

State: the open question, and who has answered the last one. Safe to lose.
"""

from anabranch.core.asks import CarryTo
from anabranch.core.points.finding import Finding
from anabranch.core.points.moving import Moving
from anabranch.core.points.state import PointState
from anabranch.model.frames import FindPoint, PointFound


class Departing:
    """Gives all join points away. See the rules at the top of this module."""

    def __init__(self, state: PointState, moving: Moving, finding: Finding) -> None:
        self._state = state
        self._moving = moving
        self._finding = finding
        self.is_departing = False
        #: The newest question: its number, its pattern, who has not answered.
        self._asked = (0, "")
        self._unanswered: set[str] = set()
        self._is_open = False
        #: Who may be given some.
        self._there: list[str] = []
        #: How long the question is open; then, how long its answers count.
        self._until = 0.0

    def begin(self, now: float) -> None:
        """The broker departs."""
        self.is_departing = self._moving.is_departing = True
        self._until = now
        self.look(now)

    def look(self, now: float) -> None:
        """Something has happened, or time has passed: ask, or give what may be given."""
        state = self._state
        if not self.is_departing or not state.points or not state.others:
            return
        if self._is_open and (not self._unanswered or self._until <= now):
            self._is_open = False
            self._until = now + state.options.pattern_again_s if self._there else now
        if not self._is_open and self._until <= now:
            self._ask(now)
        for pattern_id in [*state.points]:
            self.give(now, pattern_id)

    def _ask(self, now: float) -> None:
        state = self._state
        pattern_id = next(iter(state.points))
        self._asked = (self._finding.new_number(), pattern_id)
        self._unanswered = set(state.others)
        self._is_open = True
        self._there = []
        self._until = now + state.options.pattern_again_s
        question = FindPoint(*self._asked, is_claim=False)
        state.out += [CarryTo(edge, question) for edge in state.others]

    def give(self, now: float, pattern_id: str) -> None:
        """Give one away, if it may be and somebody is there."""
        if not self._is_open and self._there and self._moving.may_give(pattern_id):
            # Each that is refused counts as a move, so the next one is asked then.
            moves = self._state.points[pattern_id].record.moves
            self._moving.give(now, pattern_id, self._there[moves % len(self._there)])

    def answered(self, now: float, source: str, content: PointFound) -> None:
        """Another broker is there."""
        if (content.request, content.pattern) != self._asked or source not in self._unanswered:
            return
        self._unanswered.remove(source)
        if content.answer in {"no", "gone"}:
            self._there = sorted([*self._there, source])
        self.look(now)

    def refused(self, source: str) -> None:
        """Another broker does not take one (rule 3)."""
        if source in self._there:
            self._there.remove(source)

    def next_deadline(self) -> float | None:
        """When `look` is wanted."""
        is_wanted = self.is_departing and self._state.points and self._state.others
        return self._until if is_wanted else None
