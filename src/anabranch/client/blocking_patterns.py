"""Patterns for programs without an event loop: what `patterns` offers, with calls that wait.

    with anabranch.connect_blocking("127.0.0.1:4100") as client:
        for matched in client.subscribe_pattern("a:{x = 1} THEN b:{x = 2} WITHIN 5 s"):
            print(matched["a"].time_ns, matched["b"].time_ns)

Promises, names and errors are those of the asynchronous client; matches are fetched in batches, as
events are (`blocking`).
"""

import asyncio
from collections.abc import Mapping
from typing import Self

from anabranch.client.client import Client
from anabranch.client.loop_thread import LoopThread
from anabranch.client.matched import Matched
from anabranch.client.pattern_subscription import PatternSubscription
from anabranch.client.subscription import OnWithheld
from anabranch.client.wishes import Since
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.record import Placement

_BATCH_MATCHES = 256


class BlockingPatternSubscription:
    """The matches of one pattern, to be read with `for`. See the top of this module."""

    def __init__(self, loop: LoopThread, real: PatternSubscription, batch: int) -> None:
        self._loop = loop
        self._real = real
        self._batch = batch
        self._here: list[Matched] = []

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self._real.name

    @property
    def pattern_id(self) -> str:
        """The pattern's id."""
        return self._real.pattern_id

    @property
    def was_resumed(self) -> bool:
        """Whether it is a durable one that existed."""
        return self._real.was_resumed

    def wait_started(self, *streams: str, timeout: float | None = None) -> None:
        """Wait until matches of these streams are given; a stream is named like its broker."""
        work = self._real.wait_started(*streams)
        self._loop.wait(work, timeout, f"the start of subscription {self.name!r}")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Matched:
        matched = self.get()
        if matched is None:
            raise StopIteration
        return matched

    def get(self, timeout: float | None = None) -> Matched | None:
        """The next match; None after the end. `TimeoutError` if none comes in time."""
        if not self._here:
            self._here = self._loop.wait(self._fetch(timeout))
            self._here.reverse()
        return self._here.pop() if self._here else None

    async def _fetch(self, within_s: float | None) -> list[Matched]:
        # The limit is kept inside of the loop, so that nothing is taken that nobody gets.
        try:
            async with asyncio.timeout(within_s):
                return await self._real.get_batch(self._batch)
        except TimeoutError:
            awaited = f"a match of pattern {self.pattern_id!r}"
            raise TimeoutError(f"{awaited} did not come within {within_s:g} s") from None

    def ack(self, matched: Matched | None = None) -> None:
        """Every match given so far is dealt with; or every one of a stream up to this."""
        self._loop.wait(self._real.ack(matched))

    def unsubscribe(self, timeout: float | None = None) -> Mapping[str, int]:
        """End it, for good; and the pattern with it, if it was made for it."""
        awaited = f"the end of pattern {self.pattern_id!r}"
        return self._loop.wait(self._real.unsubscribe(), timeout, awaited)

    def __repr__(self) -> str:
        return f"Blocking{self._real!r}"


class BlockingPatternUser:
    """What a client that waits offers about patterns; a part of `BlockingClient`."""

    _loop: LoopThread
    _real: Client

    def subscribe_pattern(
        self,
        pattern: str | Pattern,
        *,
        durable: str | None = None,
        placement: Placement = "simple",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        timeout: float | None = None,
        batch: int = _BATCH_MATCHES,
    ) -> BlockingPatternSubscription:
        """Subscribe to the matches of a pattern; returns when it is detected."""
        work = self._real.subscribe_pattern(
            pattern,
            durable=durable,
            placement=placement,
            window=window,
            manual_ack=manual_ack,
            on_withheld=on_withheld,
            timeout=timeout,
        )
        return BlockingPatternSubscription(self._loop, self._loop.wait(work), batch)

    def define_pattern(
        self,
        pattern_id: str,
        pattern: str | Pattern,
        *,
        placement: Placement = "simple",
        lasts_s: int = 0,
        new: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Have a pattern detected under this id, from now on."""
        work = self._real.define_pattern(
            pattern_id, pattern, placement=placement, lasts_s=lasts_s, new=new, timeout=timeout
        )
        self._loop.wait(work)

    def drop_pattern(self, pattern_id: str, *, timeout: float | None = None) -> None:
        """Have a pattern detected no more."""
        self._loop.wait(self._real.drop_pattern(pattern_id, timeout=timeout))

    def matches(
        self,
        pattern_id: str,
        *,
        durable: str | None = None,
        since: Since = "now",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        must_exist: bool = False,
        batch: int = _BATCH_MATCHES,
    ) -> BlockingPatternSubscription:
        """Subscribe to the matches of a pattern that is there, or will be."""
        work = self._real.matches(
            pattern_id,
            durable=durable,
            since=since,
            window=window,
            manual_ack=manual_ack,
            on_withheld=on_withheld,
            must_exist=must_exist,
        )
        return BlockingPatternSubscription(self._loop, self._loop.wait(work), batch)
