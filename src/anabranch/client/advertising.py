"""Advertisements: what a client says that it will publish.

    client.advertise("class = 'STOCK' AND price > 0")

An advertisement is a filter. A client that has made any publishes nothing outside of them: an event
that matches none is refused here, with `NotAdvertisedError`, before it is queued. That catches the
typing mistake in a publisher that subscribers would only notice as silence.

The broker is told as well, and refuses likewise. `mesh` routing sends interest only to origins
where something is advertised that it could match; `flood` and `tree` have no use for it. Rules:

1. The broker that events go to is told, and every further one that they go to after a move. What
   changes in one turn of the loop is told together, before any event that is published later.
2. Events that were accepted while something else was advertised may not have gone out yet. So what
   is withdrawn is told to be there still until these are confirmed or have failed; and if nothing
   was advertised before, that anything may come.
3. Any thread may advertise and withdraw; the broker hears of it from the client's own.

State: the advertisements; the application makes them again after a crash.
"""

import asyncio
import threading
from collections.abc import Iterable

from anabranch.client.errors import NotAdvertisedError
from anabranch.client.outbox import Outbox
from anabranch.client.roaming import Roaming
from anabranch.core.session.advertising import EVERYTHING
from anabranch.matching.any_of import AnyOf
from anabranch.model.client_frames import ADVERTISEMENTS_MAX
from anabranch.model.errors import LocalError
from anabranch.model.event import Event
from anabranch.model.filter import Filter


class Advertisement:
    """One filter that a client's events may match. `withdraw` takes it back."""

    def __init__(self, advertised: "Advertisements", filter: Filter) -> None:
        self._advertised = advertised
        self.filter = filter

    def withdraw(self) -> None:
        """Take it back; when none is left, anything may be published again."""
        self._advertised.remove(self)

    def __repr__(self) -> str:
        return f"Advertisement({str(self.filter)!r})"


class Advertisements:
    """All advertisements of one client. See the rules at the top of this module."""

    def __init__(self, roaming: Roaming, outbox: Outbox) -> None:
        self._roaming = roaming
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        #: Never changed in place: another thread may be looking.
        self._all: tuple[Advertisement, ...] = ()
        #: What events are held against, and the advertisements it was made of.
        self._promised = promised_by(())
        self._promised_by: tuple[Advertisement, ...] = ()
        self._told: tuple[str, ...] = ()
        #: Whether something changed that was not told yet.
        self._is_news = False
        #: Withdrawn ones → how many events have to be done with before nobody needs them (rule 2).
        self._leaving: dict[str, int] = {}

    def add(self, filter: Filter) -> Advertisement:
        """Promise that events match this filter, or another one."""
        check_possible(filter)
        if len(self._all) >= ADVERTISEMENTS_MAX:
            raise LocalError(
                f"a client has at most {ADVERTISEMENTS_MAX} advertisements; withdraw some, or"
                " advertise a wider filter in place of several"
            )
        made = Advertisement(self, filter)
        self._all = (*self._all, made)
        self._changed()
        return made

    def remove(self, advertisement: Advertisement) -> None:
        """Take a promise back."""
        if advertisement in self._all:
            self._all = tuple(each for each in self._all if each is not advertisement)
            self._changed()

    def check(self, event: Event) -> None:
        """Refuse an event that was not advertised; one that was may go out after this."""
        self._tell_news()
        every = self._all
        if every is not self._promised_by:
            self._promised = promised_by(each.filter for each in every)
            self._promised_by = every
        check_advertised(event, self._promised)

    # -- the broker -----------------------------------------------------------------------------

    def _changed(self) -> None:
        self._is_news = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._tell_news)
        else:
            self._loop.call_soon_threadsafe(self._tell_news)

    def _tell_news(self) -> None:
        if not self._is_news:
            return
        self._is_news = False
        wanted = tuple(dict.fromkeys(str(each.filter) for each in self._all))
        if not self._outbox.is_idle:
            self._leaving |= dict.fromkeys(self._told or (EVERYTHING,), self._outbox.accepted)
        for text in wanted:
            self._leaving.pop(text, None)
        self._told = wanted
        self.tell()

    def tell(self) -> None:
        """Tell the broker that events go to (rule 1)."""
        origin = self._roaming.origin
        if origin is not None:
            every = (*self._told, *self._leaving) if self._told else ()
            origin.perform(origin.session.advertise(every))

    def settled(self) -> None:
        """Some events are confirmed, or have failed."""
        done = self._outbox.accepted if self._outbox.is_idle else self._outbox.done
        gone = [text for text, needed in self._leaving.items() if needed <= done]
        for text in gone:
            del self._leaving[text]
        if gone:
            self.tell()


def check_possible(filter: Filter) -> None:
    """Refuse to advertise what cannot be."""
    if not filter.conjunctions:
        raise LocalError(f"no event can match {filter}, so there is nothing to advertise")


def promised_by(filters: Iterable[Filter]) -> AnyOf:
    """What events are held against. Applications shall not wait for a compiler (see `any_of`)."""
    return AnyOf(filters, engine="numpy")


def check_advertised(event: Event, promised: AnyOf) -> None:
    """Refuse an event that matches none of these, if there are any."""
    if promised.filters and not promised.matches(event):
        raise NotAdvertisedError(
            f"{event!r} is not what this client advertised, which is {promised}; change the"
            " event, or advertise more"
        )
