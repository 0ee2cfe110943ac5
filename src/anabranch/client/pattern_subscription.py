"""The matches of a pattern, as the application holds them.

    async for matched in await client.matches("swings", durable="audit"):
        ...

Round a subscription to the events that tell of matches (`subscription`), with all of its rules: a
match is given once and in the order of its stream; it is dealt with when the next one is asked for,
or with `ack`; what will not come is told. An event that should tell of a match and cannot be read
is a `RemoteError` in its place; it counts as given, and reading goes on after it.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Self

from anabranch.client.matched import Matched, matched_by
from anabranch.client.received import Received
from anabranch.client.subscription import Subscription
from anabranch.model.errors import RemoteError
from anabranch.model.limits import Limits


class PatternSubscription:
    """The matches of one pattern. See the top of this module."""

    def __init__(
        self,
        subscription: Subscription,
        pattern_id: str,
        limits: Limits,
        end: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        #: The subscription to the events that tell of matches.
        self.subscription = subscription
        #: The pattern's id.
        self.pattern_id = pattern_id
        self._limits = limits
        self._end = end

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self.subscription.name

    @property
    def was_resumed(self) -> bool:
        """Whether it is a durable one that existed."""
        return self.subscription.was_resumed

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive."""
        return self.subscription.is_over

    async def wait_started(self, *streams: str) -> None:
        """Wait until matches of these streams are given; a stream is named like its broker."""
        await self.subscription.wait_started(*streams)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Matched:
        return matched_by(await anext(self.subscription), self._limits)

    async def get(self) -> Matched:
        """The next match; `LocalError` if the subscription has ended."""
        return matched_by(await self.subscription.get(), self._limits)

    async def get_batch(self, matches_max: int = 256) -> list[Matched]:
        """All matches that are there, at least one and at most so many; none after the end."""
        found: list[Matched] = []

        def can_be_read(received: Received) -> bool:
            try:
                found.append(matched_by(received, self._limits))
            except RemoteError:
                # It comes alone, so that nothing else is lost to who reads.
                return False
            return True

        batch = await self.subscription.get_batch(matches_max, can_be_read)
        return found or [matched_by(each, self._limits) for each in batch]

    async def ack(self, matched: Matched | None = None) -> None:
        """Every match given so far is dealt with; or every one of a stream up to this."""
        await self.subscription.ack(None if matched is None else matched.received)

    async def unsubscribe(self) -> Mapping[str, int]:
        """End it, for good; and the pattern with it, if it was made for it."""
        if self._end is not None:
            await self._end()
        return await self.subscription.unsubscribe()

    def __repr__(self) -> str:
        return f"PatternSubscription({self.pattern_id!r}, {self.name!r})"
