"""Advertisements: what a client says that it will publish.

    client.advertise("class = 'STOCK' AND price > 0")

An advertisement is a filter. A client that has made any publishes nothing outside of them: an event
that matches none is refused here, with `NotAdvertisedError`, before it is queued. That catches the
typing mistake in a publisher that subscribers would only notice as silence.

Brokers are not told: `flood` and `tree` routing have no use for advertisements. Routing that has
will be told the same filters, and the promise of the client will be the same.
"""

from anabranch.client.errors import NotAdvertisedError
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
    """All advertisements of one client."""

    def __init__(self) -> None:
        self._all: list[Advertisement] = []

    def add(self, filter: Filter) -> Advertisement:
        """Promise that events match this filter, or another one."""
        made = Advertisement(self, filter)
        self._all.append(made)
        return made

    def remove(self, advertisement: Advertisement) -> None:
        """Take a promise back."""
        if advertisement in self._all:
            self._all.remove(advertisement)

    def check(self, event: Event) -> None:
        """Refuse an event that was not advertised."""
        if self._all and not any(each.filter.matches(event) for each in self._all):
            filters = " or ".join(str(each.filter) for each in self._all)
            raise NotAdvertisedError(
                f"{event!r} is not what this client advertised, which is {filters[:200]}; change"
                " the event, or advertise more"
            )
