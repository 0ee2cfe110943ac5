"""What a session says that it will publish.

The broker is told the whole list of advertised filters, whenever it changes and on every new
connection, before any event. Events that match none of them are refused; with an empty list
everything may be published. Rules:

1. What is withdrawn is told to be there still until every event that was published before is
   confirmed, since such an event may have to be sent again. Likewise that everything may be
   published, where nothing was advertised before.
2. What is too much for the broker is told as a promise of everything: that costs traffic, and no
   event.

State: the list, which the application states again after a crash.
"""

from collections.abc import Sequence

from anabranch.core.session.effects import SendFrame, SessionEffects
from anabranch.model.client_frames import ADVERTISEMENTS_MAX, Advertises

EVERYTHING = "TRUE"
#: Text of all advertisements together.
_CHARACTERS_MAX = 1_000_000


class Advertising:
    """The advertisements of one session. See the rules at the top of this module."""

    __slots__ = ("_filters", "_is_connected", "_leaving")

    def __init__(self) -> None:
        self._filters: tuple[str, ...] = ()
        #: Withdrawn ones → the last event that may need them.
        self._leaving: dict[str, int] = {}
        self._is_connected = False

    def advertise(self, filters: Sequence[str], last: int, confirmed: int) -> SessionEffects:
        """From now on events match one of these, or there are none of these.

        `last` and `confirmed` are the sequences of the events that were published and that are
        safe."""
        before, self._filters = self._filters, tuple(dict.fromkeys(filters))
        if before == self._filters:
            return []
        if confirmed < last:
            self._leaving |= dict.fromkeys(before or (EVERYTHING,), last)
        for text in self._filters:
            self._leaving.pop(text, None)
        return self._told()

    def confirmed(self, last: int, confirmed: int) -> SessionEffects:
        """Some events are safe, perhaps all."""
        is_all = confirmed == last
        gone = [text for text, needed in self._leaving.items() if is_all or needed <= confirmed]
        for text in gone:
            del self._leaving[text]
        return self._told() if gone else []

    def connected(self) -> SessionEffects:
        """There is a connection, which knows of nothing."""
        self._is_connected = True
        return self._told() if self._filters else []

    def disconnected(self) -> None:
        """There is none any more."""
        self._is_connected = False

    def _told(self) -> SessionEffects:
        if not self._is_connected:
            return []
        every = [*self._filters, *self._leaving] if self._filters else []
        if len(every) > ADVERTISEMENTS_MAX or sum(map(len, every)) > _CHARACTERS_MAX:
            every = [EVERYTHING]
        return [SendFrame(Advertises(every))]
