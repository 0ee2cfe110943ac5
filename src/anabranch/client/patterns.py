"""Patterns: subscriptions to events that belong together.

    matches = await client.subscribe_pattern(
        "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 5 s"
    )
    async for matched in matches:
        print(matched["low"]["price"], matched["high"]["price"])

The brokers detect a pattern, and publish each match as an event (docs/PATTERNS.md). Rules:

1. What is wrong with a pattern is a `PatternError` with its position, before anything is sent.
2. `subscribe_pattern` subscribes to the matches first and defines the pattern then, so that none is
   missed. The pattern has an id of its own and ends with the subscription, or with its client: it
   is kept (`keeping`) as long as that is there. If it is found to have ended before, reading raises
   `SubscriptionCutError`. That of a `define_pattern` with `lasts_s` is kept too; nobody reads it
   here, so its end is a warning in the log.
3. With `durable` it stays when the client leaves, under that name, and the client comes back to
   both. It ends with `unsubscribe`.
4. `define_pattern`, `drop_pattern` and `matches` are the same in pieces: a pattern that is there by
   itself, for any number of readers.
5. Canonical text is what brokers compare: whoever defines a pattern that is there with the same
   meaning, and the same names of parts, is told that it is.

State: as of subscriptions; which patterns are kept is lost with the process, and they end.
"""

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from functools import partial
from typing import Literal, Protocol

from anabranch.client.defining import Definitions
from anabranch.client.errors import (
    ClosedError,
    PatternRefusedError,
    PatternUnknownError,
    SubscriptionCutError,
)
from anabranch.client.keeping import Keeping, Kept
from anabranch.client.options import ClientOptions
from anabranch.client.pattern_subscription import PatternSubscription
from anabranch.client.roaming import Roaming
from anabranch.client.subscription import OnWithheld, Subscription
from anabranch.client.subscriptions import Subscriptions
from anabranch.client.uplink import Uplink
from anabranch.client.wishes import Since
from anabranch.core.patterns.scheme import Scheme
from anabranch.core.points.names import check_pattern_id
from anabranch.core.points.wanting import wanted_filter
from anabranch.core.session.effects import TellDefined
from anabranch.model.client_frames import BUSY, UNKNOWN
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.pattern.notification import subscription_to
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.record import Placement

_log = logging.getLogger("anabranch.client")


def read_pattern(pattern: str | Pattern, pattern_id: str, limits: Limits) -> str:
    """Its canonical text, if it can be detected under this id."""
    check_pattern_id(pattern_id, limits)
    parsed = Pattern.parse(pattern, limits) if isinstance(pattern, str) else pattern
    scheme = Scheme(parsed, pattern_id, limits)
    # Whether the normal form of what it wants is within the limits shows when it is made.
    _ = Filter.parse(wanted_filter(scheme), limits).conjunctions
    return scheme.text


class _Subscribe(Protocol):
    """Makes a subscription, as `Client.subscribe` does."""

    def __call__(
        self,
        filter: str,
        *,
        durable: str | None = None,
        quality: Literal["reliable", "best-effort"] = "reliable",
        since: Since = "now",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        must_exist: bool = False,
    ) -> Coroutine[None, None, Subscription]:
        """Make it."""


class Patterns:
    """The patterns of one client. See the rules at the top of this module."""

    def __init__(
        self,
        roaming: Roaming,
        options: ClientOptions,
        limits: Limits,
        subscriptions: Subscriptions,
        subscribe: _Subscribe,
    ) -> None:
        self._roaming = roaming
        self._options = options
        self.limits = limits
        self._subscriptions = subscriptions
        self.subscribe = subscribe
        self._definitions = Definitions(roaming, options)
        self._keeping = Keeping(self._definitions, options)

    def within_s(self, given_s: float | None) -> float:
        """How long a call waits."""
        return self._options.pattern_within_s if given_s is None else given_s

    def pause_s(self, failures: int) -> float:
        """How long to wait before a broker is asked again."""
        return self._options.pause_s(failures)

    async def define(
        self,
        pattern_id: str,
        pattern: str | Pattern,
        placement: Placement,
        lasts_s: int,
        *,
        is_new: bool,
        within_s: float | None,
    ) -> None:
        """Define a pattern that is there by itself, and keep one that does not stay."""
        text = read_pattern(pattern, pattern_id, self.limits)
        keep_s = self._options.pattern_keep_s
        if lasts_s < 0 or 0 < lasts_s < 2 * keep_s:
            raise LocalError(
                f"lasts_s={lasts_s} is less than twice pattern_keep_s, which is {keep_s:g}: it"
                " might end while it is kept; let it last longer, or 0 for ever"
            )
        await self._definitions.define(
            pattern_id,
            text,
            placement=placement,
            lasts_s=lasts_s,
            is_new=is_new,
            within_s=within_s,
        )
        if lasts_s:
            on_gone = partial(_log.warning, "pattern %r is kept here, and is gone: %s", pattern_id)
            self._keeping.add(pattern_id, Kept(text, lambda: True, on_gone))

    async def drop(self, pattern_id: str, within_s: float | None) -> None:
        """Detect it no more."""
        check_pattern_id(pattern_id, self.limits)
        kept = self._keeping.remove(pattern_id)
        try:
            await self._definitions.drop(pattern_id, within_s)
        except BaseException as error:
            is_gone = isinstance(error, PatternRefusedError) and error.code == UNKNOWN
            if kept is not None and not is_gone:
                # It may be there still: whoever reads its matches goes on, or is told of its end.
                self._keeping.add(pattern_id, kept)
            raise

    async def begin(
        self,
        subscription: Subscription,
        pattern_id: str,
        text: str,
        placement: Placement,
        within_s: float | None,
    ) -> PatternSubscription:
        """Define the pattern of a subscription that is there."""
        is_durable = subscription.is_durable
        try:
            await self._definitions.define(
                pattern_id,
                text,
                placement=placement,
                lasts_s=0 if is_durable else self._options.pattern_lasts_s,
                is_new=not is_durable,
                within_s=within_s,
            )
        except BaseException:
            if not is_durable:
                self._definitions.drop_soon(pattern_id)
            if not subscription.was_resumed and not subscription.is_over:
                self._subscriptions.end(subscription)
            raise
        if not is_durable:
            on_gone = partial(self._gone, subscription)
            kept = Kept(text, lambda: not subscription.is_over, on_gone, is_own=True)
            self._keeping.add(pattern_id, kept)
        return PatternSubscription(
            subscription, pattern_id, self.limits, lambda: self._end(pattern_id, is_durable)
        )

    async def _end(self, pattern_id: str, is_durable: bool) -> None:
        """The subscription that it was defined for ends."""
        try:
            await self.drop(pattern_id, None)
        except PatternRefusedError as error:
            if is_durable and error.code != UNKNOWN:
                raise
            # One that nobody keeps any more ends by itself, where a broker could not be asked.
            self._keeping.remove(pattern_id)

    def _gone(self, subscription: Subscription, reason: str) -> None:
        failure = SubscriptionCutError(subscription.name, reason)
        self._subscriptions.give_up(subscription, failure)

    # -- for the client ---------------------------------------------------------------------------

    def answered(self, uplink: Uplink, effect: TellDefined) -> None:
        """A broker has answered."""
        self._definitions.answered(uplink, effect)

    def moved(self) -> None:
        """There is another home."""
        self._definitions.moved()

    def connected(self, uplink: Uplink) -> None:
        """There is a connection."""
        self._definitions.moved()
        if uplink is self._roaming.home:
            self._keeping.connected()

    def lost(self, uplink: Uplink) -> None:
        """There is none any more."""
        self._definitions.lost(uplink)

    def settle(self) -> None:
        """The client leaves: its own patterns end."""
        for pattern_id in self._keeping.own():
            self._definitions.drop_soon(pattern_id)

    def close(self, why: ClosedError) -> None:
        """Nothing is kept, and nothing answered, any more."""
        self._keeping.close()
        self._definitions.close(why)


class PatternUser:
    """What a client offers about patterns; a part of `Client`."""

    _patterns: Patterns

    async def subscribe_pattern(
        self,
        pattern: str | Pattern,
        *,
        durable: str | None = None,
        placement: Placement = "simple",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - its error says what it means
    ) -> PatternSubscription:
        """Subscribe to the matches of a pattern; returns when it is detected at the own broker, so
        that what this client publishes next counts.

        With `durable`, a name that is unique in the network, pattern and subscription stay when
        this client leaves, and this comes back to both if they are there. `timeout` is about the
        pattern alone then; its subscription is waited for as by `subscribe`."""
        patterns, loop = self._patterns, asyncio.get_running_loop()
        within_s = patterns.within_s(timeout)
        deadline = loop.time() + within_s
        failures = 0
        while True:
            pattern_id = f"sub-{secrets.token_hex(10)}" if durable is None else durable
            text = read_pattern(pattern, pattern_id, patterns.limits)
            try:
                # Giving up on a durable one would end it, if it exists.
                async with asyncio.timeout_at(deadline if durable is None else None):
                    subscription = await patterns.subscribe(
                        subscription_to(pattern_id),
                        durable=durable,
                        window=window,
                        manual_ack=manual_ack,
                        on_withheld=on_withheld,
                    )
            except TimeoutError:
                what = f"the subscription to the matches of pattern {pattern_id!r}"
                raise PatternUnknownError(
                    f"{what} was not granted within {within_s:g} s; subscribe again"
                ) from None
            left_s = max(deadline - loop.time(), 0.0)
            try:
                return await patterns.begin(subscription, pattern_id, text, placement, left_s)
            except PatternRefusedError as error:
                # The broker that was asked first is away, and may have it: begin anew elsewhere. Or
                # too many wait there, and would for longer if all of them asked again at once.
                pause_s = patterns.pause_s(failures)
                is_late = loop.time() + pause_s >= deadline
                if durable is not None or error.code != BUSY or is_late:
                    raise
                await asyncio.sleep(pause_s)
                failures += 1

    async def define_pattern(
        self,
        pattern_id: str,
        pattern: str | Pattern,
        *,
        placement: Placement = "simple",
        lasts_s: int = 0,
        new: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - its error says what it means
    ) -> None:
        """Have a pattern detected under this id, from now on; returns when it has begun, or if it
        is there already. An id is used once, in the whole network.

        It stays until somebody drops it; with `lasts_s`, until nobody has kept it for so many
        seconds, as this client does while it is there; if it ends all the same, that is a warning
        in the log `anabranch.client`. `new` says that nobody ever used the id, and
        asks no other broker."""
        await self._patterns.define(
            pattern_id, pattern, placement, lasts_s, is_new=new, within_s=timeout
        )

    async def drop_pattern(
        self,
        pattern_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - its error says what it means
    ) -> None:
        """Have a pattern detected no more, wherever that is; `PatternRefusedError` with the code
        `unknown` if no broker has it."""
        await self._patterns.drop(pattern_id, timeout)

    async def matches(
        self,
        pattern_id: str,
        *,
        durable: str | None = None,
        since: Since = "now",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        must_exist: bool = False,
    ) -> PatternSubscription:
        """Subscribe to the matches of a pattern that is there, or will be; as `subscribe` does."""
        patterns = self._patterns
        check_pattern_id(pattern_id, patterns.limits)
        subscription = await patterns.subscribe(
            subscription_to(pattern_id),
            durable=durable,
            since=since,
            window=window,
            manual_ack=manual_ack,
            on_withheld=on_withheld,
            must_exist=must_exist,
        )
        return PatternSubscription(subscription, pattern_id, patterns.limits)
