"""Patterns: subscriptions to events that belong together.

    matches = await client.subscribe_pattern(
        "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 5 s"
    )
    async for matched in matches:
        print(matched["low"]["price"], matched["high"]["price"])

Brokers detect a pattern and publish each match as an event (docs/reference/patterns.md). Rules:

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
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Literal, Protocol, Self

import msgspec

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import (
    ClosedError,
    PatternRefusedError,
    PatternUnknownError,
    SubscriptionCutError,
)
from anabranch.client.options import ClientOptions
from anabranch.client.pattern_requests import PatternRenewal, PatternRequests, RenewedPattern
from anabranch.client.subscription import OnWithheld, Received, Since, Subscription
from anabranch.client.subscriptions import Subscriptions
from anabranch.core.patterns.join_points.records import check_pattern_id, wanted_filter
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.core.session.effects import TellDefined
from anabranch.model.client_frames import BUSY, UNKNOWN
from anabranch.model.encoding import decode_event
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.event import Event, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import (
    Contribution,
    Identity,
    Placement,
    read_notification,
    subscription_to,
)
from anabranch.model.pattern.pattern import Pattern

# What the matches of a pattern give to the application.
#
#
# A match is delivered as one event (`model.pattern.match`); this is what it says. The events
# that contributed are here as they were published. If together they were more than an event may
# hold, only their places are: `is_whole` is False then, and they can be fetched from their streams.
#
# These are values; they keep no state.


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a match. `event_of_part["price"]` reads an attribute of it."""

    #: The part of the pattern that it stands for.
    part: str
    #: Its origin's stream, and its place in it.
    stream: str
    tick: int
    #: The origin's clock when it took the event: nanoseconds since 1970 in UTC.
    time_ns: int
    #: As it was published; None if the match is not whole.
    event: Event | None

    def __getitem__(self, name: str) -> Value:
        return self._here()[name]

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """The value of an attribute, or `default` if the event has none of that name."""
        return self._here().get(name, default)

    def _here(self) -> Event:
        if self.event is None:
            raise LocalError(
                f"the match was too large to have its events: fetch tick {self.tick} of stream"
                f" {self.stream!r}"
            )
        return self.event


class Matched(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A match of a pattern. `matched["low"]` is the first event of that part."""

    #: The pattern's id.
    pattern: str
    #: All events, in their order.
    events: tuple[PartEvent, ...]
    #: What no other match of the pattern has: its sorted (part, stream, tick).
    identity: Identity
    #: Whether the events are here, and not their places alone.
    is_whole: bool
    #: Whether more matches end with the same event, and are left out (`pattern_matches_max`).
    is_cut: bool
    #: The event that told of it, for its stream, tick and time.
    received: Received

    @property
    def by_part(self) -> Mapping[str, tuple[PartEvent, ...]]:
        """Part → its events, in their order, of those that have any."""
        found: dict[str, tuple[PartEvent, ...]] = {}
        for each in self.events:
            found[each.part] = (*found.get(each.part, ()), each)
        return found

    def __getitem__(self, part: str) -> PartEvent:
        for each in self.events:
            if each.part == part:
                return each
        parts = ", ".join(dict.fromkeys(each.part for each in self.events))
        raise KeyError(f"this match has no event of part {part!r}; it has some of {parts}")

    def __contains__(self, part: object) -> bool:
        return any(each.part == part for each in self.events)

    @property
    def first_ns(self) -> int:
        """The time of its first event."""
        return self.events[0].time_ns

    @property
    def last_ns(self) -> int:
        """The time of its last event."""
        return self.events[-1].time_ns


def matched_by(received: Received, limits: Limits) -> Matched:
    """What a notification tells; `RemoteError` if it is none."""
    told = read_notification(received.event, limits)
    return Matched(
        pattern=told.match.pattern,
        events=tuple(_part(each, told.is_whole, limits) for each in told.match.contributions),
        identity=told.match.identity,
        is_whole=told.is_whole,
        is_cut=told.match.is_cut,
        received=received,
    )


def _part(contribution: Contribution, is_whole: bool, limits: Limits) -> PartEvent:
    placed = contribution.event
    return PartEvent(
        part=contribution.part,
        stream=placed.stream,
        tick=placed.tick,
        time_ns=placed.time_ns,
        event=decode_event(placed.body, limits) if is_whole else None,
    )


class PatternSubscription:
    """The matches of a pattern, as the application holds them.

        async for matched in await client.matches("swings", durable="audit"):
            ...

    Round a subscription to the events that tell of matches (`subscription`), with all of its rules:
    a match is given once and in the order of its stream; it is dealt with when the next one is
    asked for, or with `ack`; what will not come is told. An event that should tell of a match and
    cannot be read is a `RemoteError` in its place; it counts as given, and reading goes on after
    it.
    """

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


_log = logging.getLogger("anabranch.client")


def read_pattern(pattern: str | Pattern, pattern_id: str, limits: Limits) -> str:
    """Its canonical text, if it can be detected under this id."""
    check_pattern_id(pattern_id, limits)
    parsed = Pattern.parse(pattern, limits) if isinstance(pattern, str) else pattern
    scheme = PatternScheme(parsed, pattern_id, limits)
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
        roaming: BrokerConnections,
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
        self._definitions = PatternRequests(roaming, options)
        self._keeping = PatternRenewal(self._definitions, options)

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
            self._keeping.add(pattern_id, RenewedPattern(text, lambda: True, on_gone))

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
            kept = RenewedPattern(text, lambda: not subscription.is_over, on_gone, is_own=True)
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

    def answered(self, uplink: BrokerConnection, effect: TellDefined) -> None:
        """A broker has answered."""
        self._definitions.answered(uplink, effect)

    def moved(self) -> None:
        """There is another home."""
        self._definitions.moved()

    def connected(self, uplink: BrokerConnection) -> None:
        """There is a connection."""
        self._definitions.moved()
        if uplink is self._roaming.home:
            self._keeping.connected()

    def lost(self, uplink: BrokerConnection) -> None:
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
