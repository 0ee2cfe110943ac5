"""Order of one publisher's events over several origins: when it may move, and what it states then.

Each origin has its own stream, and nothing orders two streams. So a publisher that moves states in
its events which ticks of other streams they follow (`after`), and edges deliver those first
(`core.edge.publisher_order`). That works only if the ticks are known, so a publisher does not move
while an event is *unresolved*: sent to its origin and not answered.

Rules with `order="publisher"`

1. Move. The publisher moves when no event is unresolved. From the time when it wants to move, it
   waits for that for at most `order_within_s`. Then it gives up: the unresolved events may or may
   not be published, the events that wait behind them are not sent, and it moves.
2. Ticks. A confirmation carries a synced tick of the origin's stream, at or after the confirmed
   events. The publisher remembers the last one of each origin.
3. After. Every event that it sends within `order_stated_s` after it left an origin names that
   origin and tick, so that every subscription learns it that matches one of these events. The
   event's own origin is never named, since a stream is in order. At most `AFTER_MAX` origins are
   named, the newest.

With `order="stream"` the publisher waits for unresolved events as long as it takes, because only
their origin knows whether it has them (ADR 0007), and states nothing.

State: lost with the process. The next process states nothing about the events of this one.
"""

from typing import Literal

from anabranch.model.event import AFTER_MAX, After

Order = Literal["publisher", "stream"]
Decision = Literal["stay", "move", "give-up"]


class _LastConfirmed:
    """The last confirmed event at one origin."""

    __slots__ = ("incarnation", "left_at", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self.incarnation = 0
        #: When the publisher left the origin; None while it is there.
        self.left_at: float | None = None


class PublisherOrder:
    """The order of one publisher. See the rules at the top of this module."""

    def __init__(self, order: Order, within_s: float, stated_s: float) -> None:
        self._order = order
        self._within_s = within_s
        self._stated_s = stated_s
        #: Origin → its last confirmed event; the current origin, if any, is the last key.
        self._confirmed: dict[str, _LastConfirmed] = {}
        self._origin = ""
        self._incarnation = 0
        #: Events follow all confirmed events of this incarnation and later ones; 0: of none.
        self._since = 0
        self._move_wanted_at: float | None = None

    # -- moving ---------------------------------------------------------------------------------

    def decide(self, now: float, *, is_resolved: bool) -> Decision:
        """What to do while the publisher wants to be at another origin."""
        if is_resolved:
            return "move"
        if self._order == "stream":
            return "stay"
        if self._move_wanted_at is None:
            self._move_wanted_at = now
        return "stay" if now < self._move_wanted_at + self._within_s else "give-up"

    @property
    def gives_up_at(self) -> float | None:
        """When `decide` gives up; None if the publisher does not wait, or forever."""
        return None if self._move_wanted_at is None else self._move_wanted_at + self._within_s

    def stays(self) -> None:
        """The publisher no longer wants to move."""
        self._move_wanted_at = None

    # -- events ---------------------------------------------------------------------------------

    def opened(self, now: float, origin: str, incarnation: int) -> None:
        """The publisher sends its events to this origin from now on, with this incarnation."""
        self._move_wanted_at = None
        self._since = self._since or incarnation
        self._incarnation = incarnation
        if origin == self._origin:
            return
        left = self._confirmed.get(self._origin)
        if left is not None:
            left.left_at = now
        returned = self._confirmed.pop(origin, None)
        if returned is not None:
            returned.left_at = None
            self._confirmed[origin] = returned
        self._origin = origin

    def confirmed(self, tick: int) -> None:
        """The current origin has confirmed an event; 0: it does not say at which tick."""
        last = self._confirmed.setdefault(self._origin, _LastConfirmed())
        last.tick = max(last.tick, tick)
        last.incarnation = self._incarnation

    def after(self, now: float) -> After:
        """What the events sent now state."""
        if self._order == "stream" or not self._confirmed:
            return ()
        if len(self._confirmed) > 1 or self._origin not in self._confirmed:
            self._forget_old(now)
        return tuple(
            (origin, last.tick)
            for origin, last in reversed(self._confirmed.items())
            if origin != self._origin
        )

    def ordered_from(self) -> int:
        """The first incarnation whose confirmed events the events sent now follow; 0: none."""
        return 0 if self._order == "stream" else self._since

    def _forget_old(self, now: float) -> None:
        others = [origin for origin in self._confirmed if origin != self._origin]
        extra = len(others) - AFTER_MAX
        for number, origin in enumerate(others):
            last = self._confirmed[origin]
            assert last.left_at is not None
            if number < extra or now > last.left_at + self._stated_s or not last.tick:
                del self._confirmed[origin]
                self._since = max(self._since, last.incarnation + 1)
