"""What a client asks about patterns, and who waits for which answer.

Rules:

1. It is asked at the home, where the subscriptions are: nothing is reported before whoever
   subscribed there can hear it.
2. A request that is lost with its connection is made again, at whichever broker is the home then.
   The brokers find out among themselves whether it was granted before. So is one that a broker
   refuses because it leaves the network.
3. A pattern that is not there any more when it is dropped for the second time is dropped.
4. Calls wait for `timeout`, and for `pattern_within_s` if that is not given; then nobody knows.

State: who waits. Lost with the process; a pattern that was defined stays.
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
from anabranch.core.session.effects import SessionEffects, TellDefined
from anabranch.core.session.queries import SessionPatterns
from anabranch.model.client_frames import DEPARTING, UNKNOWN
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.pattern.match import Placement

_Asking = Callable[[SessionPatterns], tuple[int, SessionEffects]]
_Promise = asyncio.Future[TellDefined]


class _LostError(ClientError):
    """The connection on which something was asked is gone."""


class PatternRequests:
    """The requests of one client about patterns. See the rules at the top of this module."""

    def __init__(self, roaming: BrokerConnections, options: ClientOptions) -> None:
        self._roaming = roaming
        self._options = options
        self._waiting: dict[tuple[BrokerConnection, int], _Promise] = {}
        self._moved = asyncio.Event()
        #: How often there was a connection, or another home.
        self._moves = 0
        self._closed: ClosedError | None = None

    # -- for the application ----------------------------------------------------------------------

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
        """Have a pattern detected; returns when it has begun."""
        is_first = True

        def ask(defining: SessionPatterns) -> tuple[int, SessionEffects]:
            nonlocal is_first
            is_so, is_first = is_new and is_first, False
            return defining.define(
                pattern_id, text, placement, lasts_s, is_new=is_so, must_exist=must_exist
            )

        what = f"pattern {pattern_id!r}"
        answer, _ = await self._answer(ask, what, "may be defined or not, define it", within_s)
        if answer.reason:
            raise PatternRefusedError(pattern_id, answer.reason, answer.code)

    async def drop(self, pattern_id: str, within_s: float | None = None) -> None:
        """Have it detected no more."""
        what = f"the end of pattern {pattern_id!r}"
        answer, is_again = await self._answer(
            lambda defining: defining.drop(pattern_id),
            what,
            "may be dropped or not, drop it",
            within_s,
        )
        if answer.reason and not (is_again and answer.code == UNKNOWN):
            raise PatternRefusedError(pattern_id, answer.reason, answer.code)

    def drop_soon(self, pattern_id: str) -> None:
        """Ask for the end of a pattern, and do not wait for it."""
        home = self._roaming.home
        if home is not None and home.is_connected and self._closed is None:
            request, effects = home.session.defining.drop(pattern_id)
            home.perform(effects)
            home.session.defining.withdraw(request)

    def keep(self, patterns: Sequence[str]) -> None:
        """Tell the broker that these are wanted still."""
        home = self._roaming.home
        if home is not None and patterns:
            home.perform(home.session.defining.keep(patterns))

    # -- asking -----------------------------------------------------------------------------------

    async def _answer(
        self, ask: _Asking, what: str, advice: str, within_s: float | None
    ) -> tuple[TellDefined, bool]:
        """What a broker says, and whether it was asked more than once."""
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
                    # The client may have moved before this answer came.
                    while self._moves == moves:
                        self._check_open()
                        self._moved.clear()
                        await self._moved.wait()
        except TimeoutError:
            home_now = self._roaming.home
            where = "" if home_now is None else f" by {home_now.broker!r}"
            raise PatternUnknownError(
                f"{what} was not answered{where} within {bound_s:g} s; it {advice} again"
            ) from None

    async def _asked(self, home: BrokerConnection, ask: _Asking) -> TellDefined:
        request, effects = ask(home.session.defining)
        promise: _Promise = asyncio.get_running_loop().create_future()
        self._waiting[home, request] = promise
        try:
            home.perform(effects)
            return await promise
        finally:
            del self._waiting[home, request]
            home.session.defining.withdraw(request)
            if self._closed is None:
                self._roaming.settle_publisher()

    async def _home(self) -> BrokerConnection:
        """The home, when there is a connection to it."""
        while (home := self._roaming.home) is None or not home.is_connected:
            self._check_open()
            self._moved.clear()
            await self._moved.wait()
        self._check_open()
        return home

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # -- for the client ---------------------------------------------------------------------------

    def answered(self, uplink: BrokerConnection, effect: TellDefined) -> None:
        """A broker has answered."""
        promise = self._waiting.get((uplink, effect.request))
        if promise is not None and not promise.done():
            promise.set_result(effect)

    def moved(self) -> None:
        """There is a connection, or another home."""
        self._moves += 1
        self._moved.set()

    def lost(self, uplink: BrokerConnection) -> None:
        """A connection is gone, with all that was asked on it."""
        for (asked, _), promise in self._waiting.items():
            if asked is uplink and not promise.done():
                promise.set_exception(_LostError("the connection was lost"))

    def close(self, why: ClosedError) -> None:
        """Nothing is answered any more."""
        self._closed = why
        self._moved.set()
        for promise in self._waiting.values():
            if not promise.done():
                promise.set_exception(why)


class RenewedPattern(NamedTuple):
    """A pattern that is kept."""

    text: str
    is_wanted: Callable[[], bool]
    #: Told why it is not there any more.
    on_gone: Callable[[str], None]
    #: Whether it ends with its client, and not only some time after it.
    is_own: bool = False


class PatternRenewal:
    """Keeping patterns that end with their client, and noticing when one has ended before.

    Rules:

    1. While anything is to be kept, the broker is told so every `pattern_keep_s`, and at once on
       every new connection.
    2. A pattern can end all the same: its broker may be cut off from the client's for too long, or
       somebody drops it. So after every new connection, and every `PATTERN_LASTS` keeps, it is
       asked for. If no broker has it any more, whoever wanted it is told. That one is silent says
       nothing.
    3. What is wanted no more, because the subscription that it was made for was cut, is dropped.

    State: what is kept. Lost with the process, and the patterns end.
    """

    def __init__(self, definitions: PatternRequests, options: ClientOptions) -> None:
        self._definitions = definitions
        self._kept: dict[str, RenewedPattern] = {}
        self._again = Debounce(options.pattern_keep_s, self._keep)
        self._keeps = 0
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, pattern_id: str, kept: RenewedPattern) -> None:
        """Keep a pattern from now on."""
        if not self._is_closed:
            self._kept[pattern_id] = kept
            self._again.ask()

    def remove(self, pattern_id: str) -> RenewedPattern | None:
        """Keep it no more; returns what was kept."""
        return self._kept.pop(pattern_id, None)

    def own(self) -> list[str]:
        """Those that end with this client."""
        return [pattern_id for pattern_id, kept in self._kept.items() if kept.is_own]

    def connected(self) -> None:
        """There is a new connection to the home."""
        if self._kept:
            self._tell()
            self._look()

    def close(self) -> None:
        """Keep nothing any more."""
        self._is_closed = True
        self._kept.clear()
        self._again.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _keep(self) -> None:
        for pattern_id in [key for key, kept in self._kept.items() if not kept.is_wanted()]:
            del self._kept[pattern_id]
            self._definitions.drop_soon(pattern_id)
        if not self._kept:
            return
        self._again.ask()
        self._keeps += 1
        self._tell()
        if self._keeps % PATTERN_LASTS == 0:
            self._look()

    def _tell(self) -> None:
        ids = [*self._kept]
        for first in range(0, len(ids), ITEMS_MAX):
            self._definitions.keep(ids[first : first + ITEMS_MAX])

    def _look(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_for_all())

    async def _look_for_all(self) -> None:
        for pattern_id, kept in list(self._kept.items()):
            try:
                await self._definitions.define(pattern_id, kept.text, must_exist=True)
            except PatternRefusedError as error:
                if error.code == UNKNOWN and self._kept.pop(pattern_id, None) is not None:
                    kept.on_gone(error.reason)
            except ClientError:
                # Nobody knows; it is looked for again.
                return
