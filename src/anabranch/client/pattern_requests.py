"""Requests to define, drop and renew patterns.

Rules:

1. Requests go to the home, where the subscriptions are, so that no match is reported before its
   subscriber can receive it.
2. A request that is lost with its connection is repeated at the new home, and so is one that a
   departing broker refuses. The brokers determine among themselves whether it was granted before.
3. A pattern that no longer exists when a drop is repeated counts as dropped.
4. Calls wait for `timeout`, by default for `pattern_within_s`. After that the outcome is unknown.

State: the pending requests. Lost with the process; a defined pattern stays.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import (
    ClientError,
    ClosedError,
    PatternRefusedError,
    PatternUnknownError,
)
from anabranch.client.options import PATTERN_LASTS, ClientOptions
from anabranch.client.subscriptions import Debounce
from anabranch.core.session.effects import PatternRequestAnswered, SessionEffects
from anabranch.core.session.session import SessionPatterns
from anabranch.model.client_frames import DEPARTING, UNKNOWN
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.pattern.match import Placement

_Asking = Callable[[SessionPatterns], tuple[int, SessionEffects]]
_Promise = asyncio.Future[PatternRequestAnswered]


class _LostError(ClientError):
    """The connection of a pending request was lost."""


class PatternRequests:
    """The pattern requests of one client. See the rules at the top of this module."""

    def __init__(self, connections: BrokerConnections, options: ClientOptions) -> None:
        self._connections = connections
        self._options = options
        self._waiting: dict[tuple[BrokerConnection, int], _Promise] = {}
        self._moved = asyncio.Event()
        #: The number of new connections and homes.
        self._moves = 0
        self._closed: ClosedError | None = None

    # -- called by `Patterns` ---------------------------------------------------------------------

    async def define(
        self,
        pattern_id: str,
        text: str,
        *,
        placement: Placement = "simple",
        lasts_s: int = 0,
        is_new: bool = False,
        must_exist: bool = False,
        within_s: float | None = None,
    ) -> None:
        """Define a pattern; return when detection has begun."""
        is_first = True

        def ask(defining: SessionPatterns) -> tuple[int, SessionEffects]:
            nonlocal is_first
            is_new_now, is_first = is_new and is_first, False
            return defining.define(
                pattern_id, text, placement, lasts_s, is_new=is_new_now, must_exist=must_exist
            )

        what = f"pattern {pattern_id!r}"
        answer, _ = await self._answer(ask, what, "may or may not be defined, define it", within_s)
        if answer.reason:
            raise PatternRefusedError(pattern_id, answer.reason, answer.code)

    async def drop(self, pattern_id: str, within_s: float | None = None) -> None:
        """Drop a pattern."""
        what = f"the end of pattern {pattern_id!r}"
        answer, was_repeated = await self._answer(
            lambda defining: defining.drop(pattern_id),
            what,
            "may or may not be dropped, drop it",
            within_s,
        )
        if answer.reason and not (was_repeated and answer.code == UNKNOWN):
            raise PatternRefusedError(pattern_id, answer.reason, answer.code)

    def drop_soon(self, pattern_id: str) -> None:
        """Request the end of a pattern without waiting for the answer."""
        home = self._connections.home
        if home is not None and home.is_connected and self._closed is None:
            request, effects = home.session.patterns.drop(pattern_id)
            home.perform(effects)
            home.session.patterns.withdraw(request)

    def keep(self, patterns: Sequence[str]) -> None:
        """Renew patterns at the broker."""
        home = self._connections.home
        if home is not None and patterns:
            home.perform(home.session.patterns.keep(patterns))

    # -- requests ---------------------------------------------------------------------------------

    async def _answer(
        self, ask: _Asking, what: str, advice: str, within_s: float | None
    ) -> tuple[PatternRequestAnswered, bool]:
        """Send a request; return the answer and whether the request was repeated."""
        bound_s = self._options.pattern_within_s if within_s is None else within_s
        attempts = 0
        try:
            async with asyncio.timeout(bound_s):
                while True:
                    home = await self._home()
                    attempts += 1
                    moves = self._moves
                    try:
                        answer = await self._asked(home, ask)
                    except _LostError:
                        continue
                    if answer.code != DEPARTING:
                        return answer, attempts > 1
                    # The client may have moved before this answer arrived.
                    while self._moves == moves:
                        self._check_open()
                        self._moved.clear()
                        await self._moved.wait()
        except TimeoutError:
            home_now = self._connections.home
            where = "" if home_now is None else f" by {home_now.broker!r}"
            raise PatternUnknownError(
                f"{what} was not answered{where} within {bound_s:g} s; it {advice} again"
            ) from None

    async def _asked(self, home: BrokerConnection, ask: _Asking) -> PatternRequestAnswered:
        request, effects = ask(home.session.patterns)
        promise: _Promise = asyncio.get_running_loop().create_future()
        self._waiting[home, request] = promise
        try:
            home.perform(effects)
            return await promise
        finally:
            del self._waiting[home, request]
            home.session.patterns.withdraw(request)
            if self._closed is None:
                self._connections.settle_publisher()

    async def _home(self) -> BrokerConnection:
        """Wait for a connected home."""
        while (home := self._connections.home) is None or not home.is_connected:
            self._check_open()
            self._moved.clear()
            await self._moved.wait()
        self._check_open()
        return home

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # -- called by the client ---------------------------------------------------------------------

    def answered(self, uplink: BrokerConnection, effect: PatternRequestAnswered) -> None:
        """Complete the request that a broker has answered."""
        promise = self._waiting.get((uplink, effect.request))
        if promise is not None and not promise.done():
            promise.set_result(effect)

    def moved(self) -> None:
        """Retry pending requests on a new connection or home."""
        self._moves += 1
        self._moved.set()

    def lost(self, uplink: BrokerConnection) -> None:
        """Fail the requests on a lost connection."""
        for (uplink_of_request, _), promise in self._waiting.items():
            if uplink_of_request is uplink and not promise.done():
                promise.set_exception(_LostError("the connection was lost"))

    def close(self, why: ClosedError) -> None:
        """Fail all pending requests."""
        self._closed = why
        self._moved.set()
        for promise in self._waiting.values():
            if not promise.done():
                promise.set_exception(why)


class RenewedPattern(NamedTuple):
    """A pattern that the client renews."""

    text: str
    is_wanted: Callable[[], bool]
    #: Called with the reason when the pattern no longer exists.
    on_gone: Callable[[str], None]
    #: Whether the pattern ends with its client, instead of expiring some time later.
    is_own: bool = False


class PatternRenewal:
    """Renews patterns that end with their client, and detects when one has expired.

    Rules:

    1. Every `pattern_keep_s`, and at once on every new connection, the client sends the broker the
       patterns to renew.
    2. A pattern can end nevertheless: its broker may be unreachable from the client's broker for
       too long, or another client drops it. After every new connection, and every `PATTERN_LASTS`
       renewals, the client therefore looks each pattern up. If no broker has it, `on_gone` is
       called. A missing answer proves nothing.
    3. A pattern that is no longer wanted, because its subscription was cut, is dropped.

    State: the renewed patterns. Lost with the process, and the patterns expire.
    """

    def __init__(self, definitions: PatternRequests, options: ClientOptions) -> None:
        self._requests = definitions
        self._renewed: dict[str, RenewedPattern] = {}
        self._timer = Debounce(options.pattern_keep_s, self._renew)
        self._renewals = 0
        self._lookup: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, pattern_id: str, renewed: RenewedPattern) -> None:
        """Renew a pattern from now on."""
        if not self._is_closed:
            self._renewed[pattern_id] = renewed
            self._timer.ask()

    def remove(self, pattern_id: str) -> RenewedPattern | None:
        """Stop renewing a pattern, and return it."""
        return self._renewed.pop(pattern_id, None)

    def own(self) -> list[str]:
        """Return the patterns that end with this client."""
        return [pattern_id for pattern_id, renewed in self._renewed.items() if renewed.is_own]

    def connected(self) -> None:
        """Renew all patterns on a new connection to the home."""
        if self._renewed:
            self._send_renewals()
            self._start_lookup()

    def close(self) -> None:
        """Stop renewing patterns."""
        self._is_closed = True
        self._renewed.clear()
        self._timer.cancel()
        if self._lookup is not None:
            self._lookup.cancel()

    def _renew(self) -> None:
        for pattern_id in [
            key for key, renewed in self._renewed.items() if not renewed.is_wanted()
        ]:
            del self._renewed[pattern_id]
            self._requests.drop_soon(pattern_id)
        if not self._renewed:
            return
        self._timer.ask()
        self._renewals += 1
        self._send_renewals()
        if self._renewals % PATTERN_LASTS == 0:
            self._start_lookup()

    def _send_renewals(self) -> None:
        ids = [*self._renewed]
        for first in range(0, len(ids), ITEMS_MAX):
            self._requests.keep(ids[first : first + ITEMS_MAX])

    def _start_lookup(self) -> None:
        if self._lookup is None or self._lookup.done():
            self._lookup = asyncio.get_running_loop().create_task(self._look_up_all())

    async def _look_up_all(self) -> None:
        for pattern_id, renewed in list(self._renewed.items()):
            try:
                await self._requests.define(pattern_id, renewed.text, must_exist=True)
            except PatternRefusedError as error:
                if error.code == UNKNOWN and self._renewed.pop(pattern_id, None) is not None:
                    renewed.on_gone(error.reason)
            except ClientError:
                # The outcome is unknown; the next lookup repeats it.
                return
