"""How a join point gets from one broker to another, and is never active at both.

    giver                                   taker
    stops, puts down where it goes
    TakePoint ───────────────────────────►  puts it down, begins
    forgets it   ◄─────────────────────────  PointTaken
    PointSettled ────────────────────────►  may give it away in turn

Each is said again until the next one comes. Rules:

1. It is given away only when it is known where its subscription stands, and of all that it
   published whether that is in the log, and when its own giver has forgotten it.
2. Nothing but the record travels. The taker resumes the subscription where it stood, so that it is
   given again what it needs, with the notifications that are in the giver's log.
3. Who cannot take it says so, for this count of moves; the giver begins anew. A broker that departs
   takes nothing.
4. What was given away, or refused, is remembered for a while: a message that comes late does not
   make it a second time. Where too much is remembered already, nothing more is refused for a while:
   who gives it asks again.
5. A record is checked as a definition is before it is stored: what could not be read after a
   restart is refused, and so is one that says that it goes on to somewhere else.
6. No join point starts or moves `STARTS_MAX` times. A record that says so breaks the protocol, and
   changes nothing: the next start would be beyond all numbers.
7. What is here comes from nowhere else: its giver would have forgotten it before it could come
   back. Who says otherwise is refused; who has taken what was not given yet is not heard; and that
   the giver has forgotten it nobody else can say.
"""

from msgspec.structs import replace

from anabranch.core.contract import Note
from anabranch.core.part_requests import CarryTo
from anabranch.core.patterns.join_points.definitions import PatternSearch
from anabranch.core.patterns.join_points.registry import JoinPointState
from anabranch.model.errors import RemoteError
from anabranch.model.frames import FindPoint, PointFound, PointSettled, PointTaken, TakePoint
from anabranch.model.pattern.match import PointRecord

#: Starts, and moves, of one join point: one every millisecond for a century. The numbers of its
#: subscription are 2^20 times as high and still fit.
STARTS_MAX = 1 << 42


class JoinPointMoves:
    """Gives join points away, and takes them. See the rules at the top of this module."""

    def __init__(self, state: JoinPointState) -> None:
        self._state = state
        #: Id → when its taker is asked again, or its giver is told again.
        self._again_at: dict[str, float] = {}
        #: Whether nothing is taken.
        self.is_departing = False

    def started(self, now: float, record: PointRecord) -> None:
        """A record was found at the start."""
        if record.goes_to or record.came_from:
            self._again_at[record.id] = now

    def forgotten(self, pattern_id: str) -> None:
        """It is not here any more."""
        self._again_at.pop(pattern_id, None)

    # -- giving -----------------------------------------------------------------------------------

    def may_give(self, pattern_id: str) -> bool:
        """Whether a join point can be given away now (rule 1)."""
        point = self._state.points.get(pattern_id)
        if point is None or point.record.is_over:
            return False
        return point.may_go and not point.record.came_from

    def give(self, now: float, pattern_id: str, target: str) -> None:
        """Give one away that may be given."""
        state = self._state
        point = state.points[pattern_id]
        newest = point.newest()
        state.stop(now, point)
        record = replace(
            newest,
            ticks=dict(point.standing()),
            reports={**newest.reports, state.outlook.name: state.outlook.head()},
            goes_to=target,
            moves=newest.moves + 1,
        )
        state.save(record, lambda at: self._ask(at, pattern_id))

    def _ask(self, now: float, pattern_id: str) -> None:
        state = self._state
        record = state.record(pattern_id)
        if record is not None and record.goes_to:
            moved = replace(record, goes_to="", came_from=state.outlook.name)
            state.out.append(CarryTo(record.goes_to, TakePoint(moved)))
            self._again_at[pattern_id] = now + state.options.pattern_again_s

    def taken(self, now: float, source: str, content: PointTaken) -> PointRecord | None:
        """Another broker has it, or will not have it; returns what begins here anew."""
        state = self._state
        record = state.record(content.pattern)
        if record is None:
            if not content.is_refused:
                self._settle(source, content)
            return None
        is_asked = record.id in self._again_at
        if record.moves != content.moves or record.goes_to != source or not is_asked:
            return None
        del self._again_at[record.id]
        if content.is_refused:
            state.out.append(Note("info", f"{source!r} does not take pattern {record.id!r}"))
            back = replace(record, goes_to="", is_placed=False)
            state.activate(back)
            return back
        state.forget(now, record.id)
        state.sync(lambda _: self._settle(source, content))
        return None

    def _settle(self, source: str, content: PointTaken) -> None:
        settled = PointSettled(content.pattern, content.moves)
        self._state.out.append(CarryTo(source, settled))

    # -- taking -----------------------------------------------------------------------------------

    def take(self, now: float, source: str, record: PointRecord) -> bool:
        """Another broker gives one away; returns whether it begins here."""
        state = self._state
        if max(record.incarnation, record.moves) > STARTS_MAX:
            raise RemoteError(f"pattern {record.id!r} did not start or move that often")
        known, gone = state.record(record.id), state.gone.get(record.id)
        taken = PointTaken(record.id, record.moves)
        if known is not None and known.moves >= record.moves:
            # What came first is on disk when this sync is done.
            state.sync(lambda _: self._tell(source, taken))
            return False
        if record.came_from != source:
            raise RemoteError(f"it gives pattern {record.id!r} away for {record.came_from!r}")
        is_stale = gone is not None and gone.moves >= record.moves
        is_unwanted = self.is_departing or bool(record.goes_to)
        # Reading is what costs.
        is_refused = is_stale or known is not None or is_unwanted
        pattern = "" if is_refused else state.read(record)
        if isinstance(pattern, str):
            if gone is None and len(state.gone) >= state.limits.patterns_gone_max:
                # It could not be remembered but for others; who asks again is answered later.
                return False
            if not is_stale:
                state.remember_gone(now, record.id, record.moves)
            refused = replace(taken, is_refused=True)
            state.sync(lambda _: self._tell(source, refused))
            return False
        state.activate(record, pattern)
        self._again_at[record.id] = now + state.options.pattern_again_s
        state.sync(lambda _: self._tell(source, taken))
        return True

    def _tell(self, source: str, taken: PointTaken) -> None:
        self._state.out.append(CarryTo(source, taken))

    def settled(self, source: str, content: PointSettled) -> None:
        """Its giver has forgotten it."""
        record = self._state.record(content.pattern)
        if record is None or record.moves != content.moves or not record.came_from:
            return
        if record.came_from != source:
            raise RemoteError(f"it forgets pattern {record.id!r} for {record.came_from!r}")
        self._again_at.pop(record.id, None)
        self._state.save(replace(record, came_from=""), lambda _: None)

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Say again what was not answered."""
        state = self._state
        for pattern_id in [key for key, at in self._again_at.items() if at <= now]:
            record = state.record(pattern_id)
            if record is not None and record.goes_to:
                self._ask(now, pattern_id)
            elif record is not None and record.came_from:
                self._tell(record.came_from, PointTaken(record.id, record.moves))
                self._again_at[pattern_id] = now + state.options.pattern_again_s
            else:
                del self._again_at[pattern_id]

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return min(self._again_at.values(), default=None)


class JoinPointDeparture:
    """Where the join points of a broker go that departs.

        departs            FindPoint ─────────►  all others
                           PointFound ◄────────  who is there
                           and then, as in `moving`

    Rules:

    1. Only who has just answered is given anything: one that is away would keep a pattern from
       being detected, and this broker from being drained, until it is back. All others are asked
       about one of the patterns, whatever the routing; who says that it has it already is given
       nothing.
    2. Answers are waited for until all have come, or for `pattern_again_s`, and count for as long.
       While join points are left, all are asked again then.
    3. One that is refused goes to the next of those that answered; who refused is given nothing
       more before it has answered again.
    4. A join point is given to one at a time, and taken back only if that one refuses (`moving`).
       If it dies before it has said so, it may have it on disk, and is waited for.

    State: the open question, and who has answered the last one. Safe to lose.
    """

    def __init__(
        self, state: JoinPointState, moving: JoinPointMoves, finding: PatternSearch
    ) -> None:
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
