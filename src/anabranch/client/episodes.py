"""Episodes: the uninterrupted promises made to a subscription, as traces name them.

A subscription may live through several (`check.history`, rule 4): a reliable one that lost its
connection and was asked for again, or a durable one in a new process. The name of an episode holds
the client, the subscription and a number that no other process uses, so that traces of several
processes can be read together. What has arrived in an episode belongs to it, also if the
application reads it when the next one has begun.
"""

from collections.abc import Mapping

from anabranch.client.subscription import Subscription
from anabranch.client.tracing import Trace


class Episodes:
    """Begins and ends the episodes of one client's subscriptions."""

    def __init__(self, client: str, life: int, trace: Trace | None) -> None:
        self._client = client
        self._life = life
        self._count = 0
        self.trace = trace

    def begin(
        self, subscription: Subscription, start: str, edge: str, latest_start: Mapping[str, int]
    ) -> None:
        """The subscription is asked for; what was promised before is over."""
        self.end(subscription)
        self._count += 1
        subscription.episode = f"{self._client}/{subscription.name}#{self._life}.{self._count}"
        if self.trace is not None:
            wish = subscription.wish
            asked = (wish.filter, wish.quality, start, edge)
            self.trace.subscribed(subscription.episode, *asked, latest_start=latest_start)

    def started(self, subscription: Subscription, stream: str, tick: int) -> None:
        """The application is told a start."""
        if self.trace is not None:
            self.trace.started(subscription.episode, stream, tick)

    def end(self, subscription: Subscription) -> None:
        """Nothing more is promised."""
        if self.trace is not None and subscription.episode:
            self.trace.cut(subscription.episode)
        subscription.episode = ""
