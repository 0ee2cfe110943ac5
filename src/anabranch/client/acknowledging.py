"""What the application has dealt with, on its way to the own disk and to the broker.

Rules:

1. Acknowledgements are gathered for `ack_after_s`, for all subscriptions at once.
2. Where there is a state, the broker hears of nothing that is not written down: else origins could
   forget what the next process would ask for at another broker. Durable subscriptions are gathered
   for `keep_every_s` there, or until a quarter of the window is used. A disk that takes long is
   written to less often, so that the application waits for it a tenth of the time at most, but
   every `KEEP_S_MAX` at least. What was not written when the process is killed comes again.
3. What the application is told of a durable subscription (that it stands, where it starts) is
   written down before it sees it, once for all that came together.

State: what is owed is lost with the process, which is safe: it comes again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from anabranch.client.later import Later
from anabranch.client.options import ClientOptions
from anabranch.client.state import State
from anabranch.client.subscription import Subscription
from anabranch.client.uplink import Uplink

#: The longest pause between two writes, where `keep_every_s` is not longer.
KEEP_S_MAX = 1.0
#: The pause after a write, in times that the write took.
_PAUSES = 9


def pause_s(keep_every_s: float, took_s: float) -> float:
    """How long to gather before the next write, if the last one took this long."""
    return max(keep_every_s, min(_PAUSES * took_s, KEEP_S_MAX))


class Acknowledging:
    """Acknowledges for all subscriptions of a client. See the rules at the top of this module."""

    def __init__(
        self,
        options: ClientOptions,
        state: State | None,
        arrived: Callable[[Subscription], Mapping[str, int] | None],
    ) -> None:
        """`arrived` tells how far the streams that moved have come; None for a subscription that
        cannot be acknowledged at its broker now."""
        self._state = state
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        #: Where the subscriptions are.
        self.home: Uplink | None = None
        self._owing: dict[Subscription, None] = {}
        self._owing_kept: dict[Subscription, None] = {}
        self._paying = Later(options.ack_after_s, self._pay)
        self._keep_every_s = options.keep_every_s
        self._keeping = Later(options.keep_every_s, self._keep)
        self._is_unkept = False

    def _is_kept(self, subscription: Subscription) -> bool:
        return self._state is not None and subscription.is_durable

    # -- acknowledging --------------------------------------------------------------------------

    def owes(self, subscription: Subscription) -> None:
        """There is something to acknowledge, soon."""
        if self._is_kept(subscription):
            self._owing_kept[subscription] = None
            self._keeping.ask()
        else:
            self._owing[subscription] = None
            self._paying.ask()

    def _pay(self) -> None:
        owing, self._owing = self._owing, {}
        self.acknowledge(owing)

    def _keep(self) -> None:
        owing, self._owing_kept = self._owing_kept, {}
        self.acknowledge(owing)

    def acknowledge(self, subscriptions: Iterable[Subscription]) -> None:
        """Acknowledge what is dealt with, now."""
        home = self.home
        if home is None:
            return
        owed: dict[str, dict[str, int]] = {}
        for subscription in subscriptions:
            arrived = self._arrived(subscription)
            ticks = None if arrived is None else subscription.owed(arrived)
            if ticks:
                owed[subscription.name] = ticks
                self._is_unkept |= self._is_kept(subscription)
        effects = home.session.ack(self._loop.time(), owed)
        self.settled()
        home.perform(effects)

    # -- keeping --------------------------------------------------------------------------------

    def told(self, subscription: Subscription) -> None:
        """The application is about to hear something that its next process has to know."""
        self._is_unkept |= self._is_kept(subscription)

    def settled(self) -> None:
        """All that came together was heard."""
        if self._is_unkept:
            self.store()

    def store(self) -> None:
        """Write down how durable subscriptions stand."""
        self._is_unkept = False
        if self._state is not None and self.home is not None:
            began_s = self._loop.time()
            self._state.keep(self.home.session.standings())
            self._keeping.delay_s = pause_s(self._keep_every_s, self._loop.time() - began_s)

    def forget(self, subscription: Subscription) -> None:
        """A subscription is over."""
        self._owing.pop(subscription, None)
        self._owing_kept.pop(subscription, None)

    def close(self) -> None:
        """Nothing more will be acknowledged."""
        self._paying.cancel()
        self._keeping.cancel()
