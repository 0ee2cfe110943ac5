"""Which brokers a client is at, and how it gets to another one.

A client has a *home*, where its subscriptions are, and an *origin*, where its events go. Mostly
these are one broker. Rules:

1. A lost home is looked for at the next address at once, then round and round, with a pause after
   every round that doubles up to a bound; each pause is a random part of that, so that the clients
   of a broker that died do not arrive elsewhere all at the same moment.
2. Subscriptions go to the new home at once. The publisher follows if nothing of it is unconfirmed;
   otherwise it stays with its origin, however long that takes: nobody else knows whether the origin
   has its last events. Then there are two connections until the origin has answered.
3. A broker is who it says it is in its greeting. Addresses may lead to other brokers than before,
   and several of them to one: a second connection to a broker that we are connected to is given up
   before anything is said on it.
4. All brokers are of one network: the one that was asked for, or that of the first broker.

State: volatile. What the publisher and the subscriptions know of themselves is in the sessions.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Protocol

import msgspec

from anabranch.client.addresses import Address
from anabranch.client.dialling import Call, Tls, dial
from anabranch.client.errors import ConnectError
from anabranch.client.options import ClientOptions
from anabranch.client.uplink import Listener, Uplink
from anabranch.core.session.session import Session
from anabranch.model.limits import Limits
from anabranch.wire.greeting import Greeting

_log = logging.getLogger("anabranch.client")
#: What a frame has beside the events in it.
_FRAMING_BYTES_MAX = 64
#: How long the end of connections is waited for.
_LEAVE_S = 1.0


class Traveller(Protocol):
    """Who is told where it is."""

    def arriving(self, old: Uplink | None, new: Uplink) -> None:
        """There is a home again, perhaps another one; it is not connected yet, or not here."""

    def publisher_moved(self) -> None:
        """The events go to another broker from now on."""


class Roaming:
    """The brokers of one client. See the rules at the top of this module."""

    def __init__(
        self,
        addresses: list[Address],
        *,
        name: str,
        network: str,
        tls: Tls,
        options: ClientOptions,
        limits: Limits,
    ) -> None:
        self._addresses = addresses
        self._name = name
        self._network = network
        self._tls = tls
        self._options = options
        self._limits = limits
        self._next = 0
        self._failures = 0
        #: Address → what was wrong there the last time.
        self._problems: dict[Address, str] = {}
        self._search: asyncio.Task[None] | None = None
        self._return: asyncio.Task[None] | None = None
        self._is_closed = False
        #: Set when there is a home for the first time.
        self._arrived = asyncio.Event()
        self._listener: Listener | None = None
        self._traveller: Traveller | None = None
        self.home: Uplink | None = None
        self.origin: Uplink | None = None

    def begin(self, listener: Listener, traveller: Traveller) -> None:
        """Look for a home."""
        self._listener = listener
        self._traveller = traveller
        self._look_for_home()

    @property
    def network(self) -> str:
        """The network, as soon as a broker was reached."""
        return self._network

    def problems(self) -> str:
        """What is wrong with the addresses, for people."""
        waited_for = ", ".join(map(str, self._addresses))
        silent = f"{waited_for}: no answer yet; is that a broker's port for clients?"
        return "; ".join(self._problems.values()) or silent

    # -- reaching brokers -----------------------------------------------------------------------

    async def _dial(self, address: Address) -> Call:
        greeting = Greeting(
            kind="client",
            network=self._network,
            name=self._name,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        call = await dial(address, greeting, self._tls, self._options.dial_within_s)
        if not call.is_open:
            raise ConnectError(f"{address}: the broker greeted and hung up")
        self._network = self._network or call.theirs.network
        self._problems.pop(address, None)
        return call

    def _look_for_home(self, pause: bool = False) -> None:
        if self._search is None and not self._is_closed:
            self._search = _task(self._find_home(pause))

    async def _find_home(self, pause: bool) -> None:
        # A broker that hangs up as soon as it has greeted is not to be asked all the time.
        if pause:
            await self._pause()
        while True:
            for _ in self._addresses:
                address = self._addresses[self._next % len(self._addresses)]
                self._next += 1
                try:
                    call = await self._dial(address)
                except ConnectError as error:
                    self._note(address, str(error))
                else:
                    self._search = None
                    self._arrive(call)
                    return
            await self._pause()

    def _note(self, address: Address, problem: str) -> None:
        if self._problems.get(address) != problem:
            _log.info("%s cannot be reached: %s", address, problem)
        self._problems[address] = problem

    async def _pause(self) -> None:
        pause_s = self._options.pause_s(self._failures)
        self._failures += 1
        await asyncio.sleep(pause_s)

    def _arrive(self, call: Call) -> None:
        """An address has answered: whoever is there becomes the home."""
        assert self._traveller is not None
        broker = call.theirs.name
        old, origin = self.home, self.origin
        known = next((each for each in (old, origin) if each and each.is_for(broker)), None)
        new = known or self._uplink(call)
        self.home = new
        self._traveller.arriving(old, new)
        if self.origin is None:
            self.origin = new
            self._traveller.publisher_moved()
        if known is not None and known.is_connected:
            call.give_up("we are connected already")
        else:
            new.attach(call)
        self.settle_publisher()
        self._arrived.set()
        if old is not None and old is not new and old is not self.origin:
            old.hang_up("the client is elsewhere")

    def _uplink(self, call: Call) -> Uplink:
        assert self._listener is not None
        room = call.frame_bytes_max - _FRAMING_BYTES_MAX
        limits = self._limits
        if limits.event_bytes_max > room:
            # An event that does not fit into a frame is refused when it is published.
            limits = msgspec.structs.replace(limits, event_bytes_max=room)
        options = self._options.for_session(call.frame_bytes_max)
        session = Session(self._name, options=options, limits=limits)
        return Uplink(call, session, self._listener, self._options)

    # -- losing them ----------------------------------------------------------------------------

    def note_lost(self, uplink: Uplink, reason: str) -> None:
        """Remember why a connection is gone."""
        self._note(uplink.address, f"{uplink.address}: {reason}")

    def lost(self, uplink: Uplink) -> None:
        """A connection is gone."""
        is_short = uplink.connected_for_s < self._options.pause_last_s
        if not is_short:
            self._failures = 0
        if uplink is self.home:
            self._look_for_home(is_short)
        elif uplink is self.origin:
            self._return_to_origin(uplink)

    def _return_to_origin(self, origin: Uplink) -> None:
        if self._return is None and not self._is_closed:
            self._return = _task(self._find_origin(origin))

    async def _find_origin(self, origin: Uplink) -> None:
        while self._is_wanted(origin):
            try:
                call = await self._dial(origin.address)
            except ConnectError as error:
                self._note(origin.address, str(error))
            else:
                if not self._is_wanted(origin):
                    call.give_up("not needed any more")
                elif call.theirs.name == origin.broker:
                    origin.attach(call)
                    break
                else:
                    call.give_up(f"broker {origin.broker!r} was expected")
            await self._pause()
        self._return = None

    def _is_wanted(self, origin: Uplink) -> bool:
        """Whether a connection to this origin has to be looked for, beside the home."""
        return self.origin is origin and self.home is not origin and not origin.is_connected

    def settle_publisher(self) -> None:
        """Let the publisher follow if nothing binds it to its origin."""
        origin, home = self.origin, self.home
        if origin is None or home is None or origin is home:
            return
        if not origin.is_spent and not origin.session.may_move_publisher():
            if not origin.is_connected:
                self._return_to_origin(origin)
            return
        origin.hang_up("the client is elsewhere")
        self.origin = home
        assert self._traveller is not None
        self._traveller.publisher_moved()

    # -- the end --------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Leave all brokers for good."""
        self._is_closed = True
        for task in (self._search, self._return):
            if task is not None:
                task.cancel()
        for uplink in {self.home, self.origin} - {None}:
            assert uplink is not None
            uplink.hang_up(reason)

    async def wait_until_left(self) -> None:
        """Wait until the connections are gone; not for long, it is only for tidiness."""
        tasks = [task for task in (self._search, self._return) if task is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await asyncio.gather(*tasks, return_exceptions=True)
                for uplink in (self.home, self.origin):
                    if uplink is not None:
                        await uplink.wait_until_left()

    async def wait_for_home(self, within_s: float) -> None:
        """Wait for the first home, or say why there is none."""
        try:
            async with asyncio.timeout(within_s):
                await self._arrived.wait()
        except TimeoutError:
            raise ConnectError(
                f"no broker could be reached within {within_s:g} s: {self.problems()}"
            ) from None


def _task(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)
