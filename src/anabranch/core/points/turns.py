"""Whose turn it is, where many wait for something that one can have at a time.

Each has a time from which on it wants a turn. Of those whose time has come, the one that waits
longest is next; so nobody is passed over for ever, however long a turn takes. To ask for the next
deadline costs nothing for those whose time has not come.

State: volatile.
"""

from anabranch.core.earliest import earliest
from anabranch.core.points.agenda import Agenda


class Turns:
    """Times of keys, and a queue. See the top of this module."""

    __slots__ = ("_agenda", "_at", "_due")

    def __init__(self) -> None:
        #: Key → when it wants a turn.
        self._at: dict[str, float] = {}
        self._agenda = Agenda()
        #: Those that wait for a turn, in their order.
        self._due: dict[str, None] = {}

    def wants(self, key: str, at: float) -> None:
        """This wants a turn then, and not when it was said before."""
        self._due.pop(key, None)
        self._at[key] = at
        self._agenda.add(key, at)

    def remove(self, key: str) -> None:
        """This wants none."""
        self._at.pop(key, None)
        self._due.pop(key, None)
        self._agenda.remove(key)

    def take(self, now: float) -> str | None:
        """Who is next, if anybody; it has had its turn then."""
        for key in self._agenda.due(now):
            if self._at[key] <= now:
                self._due[key] = None
            else:
                self._agenda.add(key, self._at[key])
        first = next(iter(self._due), None)
        if first is not None:
            self.remove(first)
        return first

    def next_at(self) -> float | None:
        """When somebody wants a turn."""
        first = next(iter(self._due), None)
        return earliest(None if first is None else self._at[first], self._agenda.next_at())
