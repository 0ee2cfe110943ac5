"""Patterns: subscriptions to combinations of related events.

    matches = await client.subscribe_pattern(
        "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 5 s"
    )
    async for matched in matches:
        print(matched["low"]["price"], matched["high"]["price"])

Brokers detect a pattern and publish each match as an event (docs/reference/patterns.md). Rules:

1. Errors. An invalid pattern raises `PatternError` with the position, before anything is sent.
2. Ad hoc patterns. `subscribe_pattern` first subscribes to the matches and then defines the
   pattern, so that no match is missed. The pattern has a random id and ends with its subscription
   or its client: the client renews it (`PatternRenewal`) until then. If the pattern turns out to
   have expired, reading raises `SubscriptionCutError`. A pattern defined with `lasts_s` is renewed
   too; it has no reader here, so its expiry is logged as a warning.
3. Durable patterns. With `durable`, the pattern and the subscription stay under that name when the
   client leaves, and the client can resume both. `unsubscribe` ends them.
4. Shared patterns. `define_pattern`, `drop_pattern` and `matches` offer the same in steps: a
   pattern that exists by itself, for any number of readers.
5. Identity. Brokers compare canonical texts. Defining an existing pattern with the same meaning and
   the same part names succeeds.

State: as for subscriptions. The set of renewed patterns is lost with the process, and they expire.
"""

from __future__ import annotations  # so that help() prints types as they are written

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import (
    ClosedError,
    PatternRefusedError,
    PatternUnknownError,
    SubscriptionCutError,
)
from anabranch.client.keyword_hints import check_choice, suggest_keywords
from anabranch.client.options import ClientOptions
from anabranch.client.pattern_requests import PatternRenewal, PatternRequests, RenewedPattern
from anabranch.client.subscribe_request import Since
from anabranch.client.subscription import OnWithheld, Received, call_with_each
from anabranch.client.subscription_state import SubscriptionState
from anabranch.client.subscriptions import Subscriptions
from anabranch.client.typed_attributes import TypedAttributes
from anabranch.core.session.effects import PatternRequestAnswered
from anabranch.model.client_frames import BUSY, UNKNOWN
from anabranch.model.encoding import decode_event
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.event import Event, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.names import check_pattern_id
from anabranch.model.pattern.match import (
    Contribution,
    Identity,
    Placement,
    read_notification,
    subscription_to,
)
from anabranch.model.pattern.pattern import Pattern


class PartEvent(TypedAttributes, msgspec.Struct, frozen=True, kw_only=True):
    """An event of a match.

    `part_event["price"]` and `get` return an attribute; `float`, `int`, `text` and `bool` also
    check its type.
    """

    #: The part of the pattern that the event matches.
    part: str
    #: The stream of the event's origin, and the event's position in it.
    stream: str
    tick: int
    #: The origin's clock when it accepted the event: nanoseconds since 1970 in UTC.
    time_ns: int
    #: The event as published; None if `Matched.is_whole` is false.
    event: Event | None

    def __getitem__(self, name: str) -> Value:
        return self._included()[name]

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """Return the value of an attribute, or `default` if the event does not have it."""
        return self._included().get(name, default)

    def _included(self) -> Event:
        if self.event is None:
            raise LocalError(
                "the match was too large to include its events; fetch tick"
                f" {self.tick} of stream {self.stream!r}"
            )
        return self.event


class Matched(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A match of a pattern. `matched["low"]` is the first event of that part.

    A match is delivered as one event and contains the contributing events as published. If together
    they exceed the size of an event, the match contains only their streams and ticks: `is_whole` is
    false, and the events can be fetched from their streams.
    """

    #: The id of the pattern.
    pattern: str
    #: The contributing events, in order.
    events: tuple[PartEvent, ...]
    #: Identifies the match within its pattern: its sorted (part, stream, tick) triples.
    identity: Identity
    #: Whether the match contains the events themselves, not only their positions.
    is_whole: bool
    #: Whether further matches that end with the same event were omitted (`pattern_matches_max`).
    is_cut: bool
    #: The notification event, with its stream, tick and time.
    received: Received

    @property
    def by_part(self) -> Mapping[str, tuple[PartEvent, ...]]:
        """The events of each part, in order; parts without events are absent."""
        found: dict[str, tuple[PartEvent, ...]] = {}
        for event in self.events:
            found[event.part] = (*found.get(event.part, ()), event)
        return found

    def __getitem__(self, part: str) -> PartEvent:
        for event in self.events:
            if event.part == part:
                return event
        parts = ", ".join(dict.fromkeys(event.part for event in self.events))
        raise KeyError(f"this match has no event of part {part!r}; its parts are {parts}")

    def __contains__(self, part: object) -> bool:
        return any(event.part == part for event in self.events)

    @property
    def first_ns(self) -> int:
        """The time of the first event."""
        return self.events[0].time_ns

    @property
    def last_ns(self) -> int:
        """The time of the last event."""
        return self.events[-1].time_ns


def matched_by(received: Received, limits: Limits) -> Matched:
    """Decode the match in a notification; raise `RemoteError` if it is not a notification."""
    notification = read_notification(received.event, limits)
    return Matched(
        pattern=notification.match.pattern,
        events=tuple(
            _part(contribution, notification.is_whole, limits)
            for contribution in notification.match.contributions
        ),
        identity=notification.match.identity,
        is_whole=notification.is_whole,
        is_cut=notification.match.is_cut,
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
    """The matches of a pattern: an async iterator of `Matched`.

        async with await client.matches("swings", durable="audit") as matches:
            async for matched in matches:
                ...

    Create one with `Client.subscribe_pattern` or `Client.matches`. A match is delivered once, in
    the order of its stream. It counts as processed when the next one is requested, or with `ack`.
    Matches that will not be delivered are reported as withheld. A notification that cannot be
    decoded raises `RemoteError` in its place; it counts as delivered, and reading continues after
    it.
    """

    def __init__(
        self,
        state: SubscriptionState,
        pattern_id: str,
        limits: Limits,
        end: Callable[[], Coroutine[None, None, None]] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self._state = state
        #: The id of the pattern.
        self.pattern_id = pattern_id
        self._limits = limits
        #: How to drop a pattern that was defined for this subscription: waiting, and at once.
        self._end = end
        self._leave = leave

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self._state.name

    @property
    def was_resumed(self) -> bool:
        """Whether the subscription is durable and existed before."""
        return self._state.was_resumed

    @property
    def is_over(self) -> bool:
        """Whether the subscription has ended; no more matches will arrive."""
        return self._state.is_over

    async def wait_started(self, *streams: str) -> None:
        """Wait until the subscription has started on these streams, or on any stream if none is
        named.

        Streams have the names of their brokers.
        """
        await self._state.wait_started(*streams)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Matched:
        received = await self._state.next()
        if received is None:
            raise StopAsyncIteration
        return matched_by(received, self._limits)

    async def get(self) -> Matched:
        """Return the next match; raise `LocalError` if the subscription has ended."""
        return matched_by(await self._state.subscription.get(), self._limits)

    async def get_batch(self, matches_max: int = 256) -> list[Matched]:
        """Return all available matches: at least one, at most `matches_max`; none after the end."""
        found: list[Matched] = []

        def can_be_read(received: Received) -> bool:
            try:
                found.append(matched_by(received, self._limits))
            except RemoteError:
                # Returned alone, so that its error does not discard other matches.
                return False
            return True

        batch = await self._state.next_batch(matches_max, can_be_read)
        return found or [matched_by(received, self._limits) for received in batch]

    async def each(self, callback: Callable[[Matched], Awaitable[object] | object]) -> None:
        """Call a function with every match, one after the other, until the subscription ends.

        The function may be asynchronous. The next match is requested when it has returned. An error
        of the function ends the call and is raised here; the match then counts as not processed.
        """
        await call_with_each(self, callback)

    async def ack(self, matched: Matched | None = None) -> None:
        """Acknowledge every match returned so far, or those of one stream up to `matched`."""
        await self._state.subscription.ack(None if matched is None else matched.received)

    async def unsubscribe(self) -> Mapping[str, int]:
        """End the subscription permanently, and drop the pattern if it was defined for it.

        Returns the last tick of each stream.
        """
        if self._end is not None:
            await self._end()
        return await self._state.unsubscribe()

    async def close(self) -> None:
        """Stop reading, as `Client.close` does for all subscriptions.

        Acknowledges the processed matches. A durable subscription and its pattern stay in the
        network: subscribing again with the same arguments continues it, also in this client. Any
        other subscription ends, and so does a pattern that was defined for it.
        """
        if self._leave is not None and not self._state.is_over:
            self._leave()
        self._state.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"PatternSubscription({self.pattern_id!r}, {self.name!r})"


_log = logging.getLogger("anabranch.client")


def read_pattern(pattern: str | Pattern, pattern_id: str, limits: Limits) -> str:
    """Return the canonical text of a pattern, after checking that it can be detected under this
    id.
    """
    # Most clients define no pattern, and need not load the detector.
    from anabranch.core.patterns.join_points.records import wanted_filter  # noqa: PLC0415
    from anabranch.core.patterns.scheme import PatternScheme  # noqa: PLC0415

    check_pattern_id(pattern_id, limits.name_bytes_max)
    parsed = Pattern.parse(pattern, limits) if isinstance(pattern, str) else pattern
    scheme = PatternScheme(parsed, pattern_id, limits)
    # Computing the normal form of the wanted filter checks it against the limits.
    _ = Filter.parse(wanted_filter(scheme), limits).conjunctions
    return scheme.text


class _Subscribe(Protocol):
    """Creates a subscription, as `Client.subscribe` does."""

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
    ) -> Coroutine[None, None, SubscriptionState]: ...


class Patterns:
    """The patterns of one client. See the rules at the top of this module."""

    def __init__(
        self,
        connections: BrokerConnections,
        options: ClientOptions,
        limits: Limits,
        subscriptions: Subscriptions,
        subscribe: _Subscribe,
    ) -> None:
        self._connections = connections
        self._options = options
        self.limits = limits
        self._subscriptions = subscriptions
        self.subscribe = subscribe
        self._requests = PatternRequests(connections, options)
        self._renewal = PatternRenewal(self._requests, options)

    def within_s(self, given_s: float | None) -> float:
        """Return the given timeout, or the default."""
        return self._options.pattern_within_s if given_s is None else given_s

    def pause_s(self, failures: int) -> float:
        """Return how long to back off before the next attempt."""
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
        """Define a shared pattern, and renew it if it has a limited lifetime."""
        check_choice("placement", placement, Placement)
        text = read_pattern(pattern, pattern_id, self.limits)
        keep_s = self._options.pattern_keep_s
        if lasts_s < 0 or 0 < lasts_s < 2 * keep_s:
            raise LocalError(
                f"lasts_s={lasts_s} is less than twice pattern_keep_s ({keep_s:g}): the pattern"
                " might expire between renewals; give a longer time, or 0 for no expiry"
            )
        await self._requests.define(
            pattern_id,
            text,
            placement=placement,
            lasts_s=lasts_s,
            is_new=is_new,
            within_s=within_s,
        )
        if lasts_s:
            on_gone = partial(
                _log.warning, "pattern %r, renewed by this client, is gone: %s", pattern_id
            )
            self._renewal.add(pattern_id, RenewedPattern(text, lambda: True, on_gone))

    async def drop(self, pattern_id: str, within_s: float | None) -> None:
        """Drop a pattern."""
        check_pattern_id(pattern_id, self.limits.name_bytes_max)
        renewed = self._renewal.remove(pattern_id)
        try:
            await self._requests.drop(pattern_id, within_s)
        except BaseException as error:
            is_gone = isinstance(error, PatternRefusedError) and error.code == UNKNOWN
            if renewed is not None and not is_gone:
                # The pattern may still exist; keep renewing it for its readers.
                self._renewal.add(pattern_id, renewed)
            raise

    async def begin(
        self,
        subscription: SubscriptionState,
        pattern_id: str,
        text: str,
        placement: Placement,
        within_s: float | None,
    ) -> PatternSubscription:
        """Define the pattern of a new subscription."""
        is_durable = subscription.is_durable
        try:
            await self._requests.define(
                pattern_id,
                text,
                placement=placement,
                lasts_s=0 if is_durable else self._options.pattern_lasts_s,
                is_new=not is_durable,
                within_s=within_s,
            )
        except BaseException:
            if not is_durable:
                self._requests.drop_soon(pattern_id)
            if not subscription.was_resumed and not subscription.is_over:
                self._subscriptions.end(subscription)
            raise
        if not is_durable:
            on_gone = partial(self._expired, subscription)
            renewed = RenewedPattern(text, lambda: not subscription.is_over, on_gone, is_own=True)
            self._renewal.add(pattern_id, renewed)
        return PatternSubscription(
            subscription,
            pattern_id,
            self.limits,
            end=lambda: self._end(pattern_id, is_durable),
            leave=None if is_durable else lambda: self._drop_soon(pattern_id),
        )

    def _drop_soon(self, pattern_id: str) -> None:
        """Drop a pattern without waiting for the outcome; it expires in any case."""
        self._renewal.remove(pattern_id)
        self._requests.drop_soon(pattern_id)

    async def _end(self, pattern_id: str, is_durable: bool) -> None:
        """Drop the pattern of a subscription that ends."""
        try:
            await self.drop(pattern_id, None)
        except PatternRefusedError as error:
            if is_durable and error.code != UNKNOWN:
                raise
            # If no broker could be reached, the pattern expires without renewals.
            self._renewal.remove(pattern_id)

    def _expired(self, subscription: SubscriptionState, reason: str) -> None:
        failure = SubscriptionCutError(subscription.name, reason)
        self._subscriptions.give_up(subscription, failure)

    # -- called by the client ---------------------------------------------------------------------

    def answered(self, uplink: BrokerConnection, effect: PatternRequestAnswered) -> None:
        """Complete the request that a broker has answered."""
        self._requests.answered(uplink, effect)

    def moved(self) -> None:
        """Retry pending requests at the new home."""
        self._requests.moved()

    def connected(self, uplink: BrokerConnection) -> None:
        """Resume on a new connection."""
        self._requests.moved()
        if uplink is self._connections.home:
            self._renewal.connected()

    def lost(self, uplink: BrokerConnection) -> None:
        """Fail the requests on a lost connection."""
        self._requests.lost(uplink)

    def settle(self) -> None:
        """Drop the patterns that end with this client."""
        for pattern_id in self._renewal.own():
            self._requests.drop_soon(pattern_id)

    def close(self, why: ClosedError) -> None:
        """Stop renewing patterns and fail all pending requests."""
        self._renewal.close()
        self._requests.close(why)


class PatternUser:
    """The pattern methods of `Client`."""

    _patterns: Patterns

    @suggest_keywords
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
        """Define a pattern and subscribe to its matches.

        Returns when this client's broker detects the pattern, so that the events this client
        publishes next count.

        - `pattern`: The pattern, as text or a `Pattern`.
        - `durable`: A name, unique in the network, under which the pattern and the subscription
          stay when this client leaves. If they exist, they are resumed.
        - `placement`: How brokers choose the place where the pattern is detected.
        - `window`, `manual_ack`, `on_withheld`: As for `subscribe`.
        - `timeout`: Seconds to wait; the default is `pattern_within_s`. With `durable`, it applies
          to the pattern only; the wait for the subscription is that of `subscribe`.

        Raises `PatternError` if the pattern is invalid, `PatternRefusedError` if the broker refuses
        it, and `PatternUnknownError` if no broker answers in time.
        """
        check_choice("placement", placement, Placement)
        patterns, loop = self._patterns, asyncio.get_running_loop()
        within_s = patterns.within_s(timeout)
        deadline = loop.time() + within_s
        failures = 0
        while True:
            pattern_id = f"sub-{secrets.token_hex(10)}" if durable is None else durable
            text = read_pattern(pattern, pattern_id, patterns.limits)
            try:
                # A timeout would end a durable subscription that exists.
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
                # The first broker is away and may have defined it: retry elsewhere with a new id.
                # Or its queue is full: back off, so that clients do not all retry at once.
                pause_s = patterns.pause_s(failures)
                is_late = loop.time() + pause_s >= deadline
                if durable is not None or error.code != BUSY or is_late:
                    raise
                await asyncio.sleep(pause_s)
                failures += 1

    @suggest_keywords
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
        """Define a pattern under this id; brokers detect it from now on.

        Returns when detection has begun, or at once if the same pattern is already defined. An id
        is used only once in the whole network.

        - `lasts_s`: 0 keeps the pattern until it is dropped. Otherwise it expires when no client
          has renewed it for this many seconds. This client renews it while it is connected; if the
          pattern expires nevertheless, a warning is logged to `anabranch.client`.
        - `placement`: How brokers choose the place where the pattern is detected.
        - `new`: State that the id was never used, which saves the lookup.
        - `timeout`: Seconds to wait; the default is `pattern_within_s`.

        Raises `PatternError` if the pattern is invalid, `PatternRefusedError` if the broker refuses
        it, and `PatternUnknownError` if no broker answers in time.
        """
        await self._patterns.define(
            pattern_id, pattern, placement, lasts_s, is_new=new, within_s=timeout
        )

    @suggest_keywords
    async def drop_pattern(
        self,
        pattern_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - its error says what it means
    ) -> None:
        """Drop a pattern, regardless of the broker that detects it.

        Raises `PatternRefusedError` with the code `unknown` if the pattern does not exist, and
        `PatternUnknownError` if no broker answers within `timeout` seconds.
        """
        await self._patterns.drop(pattern_id, timeout)

    @suggest_keywords
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
        """Subscribe to the matches of a pattern by its id.

        The pattern need not exist yet. The other arguments are those of `subscribe`.
        """
        patterns = self._patterns
        check_pattern_id(pattern_id, patterns.limits.name_bytes_max)
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
