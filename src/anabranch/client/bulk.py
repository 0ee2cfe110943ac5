"""A stream in bulk, for code that waits: tasks of a data pipeline, scripts, threads.

    with Fetcher("127.0.0.1:4100", "127.0.0.1:4200", stream="edge-1") as fetcher:
        described = fetcher.describe()
        for fetched in fetcher.fetch(described.oldest, described.head, filter="price > 10"):
            table.append(fetched.data)

A `Fetcher` is one connection to the origin of one stream, on a plain socket: no event loop and no
thread, so it can be used in a process that forks or has a loop of its own. Rules:

1. A stream is read at its origin. Any broker of the network says where that is; so any address does
   as long as one broker answers. Where nobody knows an address of the origin, it has to be given.
2. Answers are in the order of ticks and together without a gap, up to the last tick that was asked
   for, or the head. While the program deals with one answer, the next is on its way, if no more
   than `fetches_max` are.
3. A connection that breaks is made again, and what was not answered is asked again: the log does
   not change. If that does not help for `patience_s`, it is a `ConnectError`.
4. A refusal of the broker, or a stream that does not exist, is an error at once.
5. One thread at a time, and one process: make a fetcher where it is used. Whatever interrupts a
   call ends the connection, on which something may have been read in part, and the next call makes
   another.

State: a connection. Losing it costs nothing but asking again.
"""

import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Literal, Self

from anabranch.client.addresses import Address, parse_address
from anabranch.client.dialling import Tls, check_tls
from anabranch.client.errors import ClosedError, ConnectError
from anabranch.client.fetching import (
    FETCH_BYTES,
    TICK_MAX,
    Answer,
    check_question,
    filter_text,
    refusal,
)
from anabranch.client.options import DEFAULT_OPTIONS, ClientOptions
from anabranch.client.plug import Plug
from anabranch.config.tls import client_context
from anabranch.core.session.effects import SendFrame, SessionEffects, TellAnswer, TellCut
from anabranch.core.session.session import Session
from anabranch.model.client_frames import REPLACED, Described, Fetched, Refused
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.filter import FilterSource
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name
from anabranch.wire.greeting import Greeting

_Ask = Callable[[Session], tuple[int, SessionEffects]]


class Fetcher:
    """One stream, at its origin. See the rules at the top of this module."""

    def __init__(
        self,
        *addresses: str,
        stream: str = "",
        name: str | None = None,
        network: str = "",
        tls: SSLContext | str | Path | Literal[False] | None = None,
        patience_s: float = 30.0,
        options: ClientOptions = DEFAULT_OPTIONS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Nothing is dialled before something is asked. The arguments are those of `connect`, and

        stream       the broker whose stream it is; "": the first one that answers
        name         unique in the network; events that are addressed are given to this client
        patience_s   how long the broker may be away before that is an error
        """
        if not addresses:
            raise LocalError("give the address of at least one broker, such as 127.0.0.1:4100")
        self._addresses = list(dict.fromkeys(parse_address(text) for text in addresses))
        self._tls: Tls = client_context(Path(tls)) if isinstance(tls, str | Path) else tls
        check_tls(self._addresses, self._tls)
        self.name = f"fetcher-{secrets.token_hex(8)}" if name is None else name
        check_name(self.name, "name", limits.name_bytes_max)
        self.stream = stream
        self.network = network
        self._patience_s = patience_s
        self._options = options
        self._limits = limits
        self._process = os.getpid()
        #: Where the origin was found.
        self._found: Address | None = None
        self._plug: Plug | None = None
        self._session = Session(self.name, limits=limits)
        #: Request → its answer, None until it is here.
        self._answers: dict[int, Described | Fetched | Refused | None] = {}

    # -- for the program ------------------------------------------------------------------------

    def describe(self) -> Described:
        """What the stream holds, and where the others are."""
        answer = self._answer(Session.describe, None)
        assert isinstance(answer, Described)
        return answer

    def fetch(
        self,
        first: int,
        last: int = TICK_MAX,
        *,
        filter: str | FilterSource = "",
        bytes_max: int = FETCH_BYTES,
    ) -> Iterator[Fetched]:
        """Events of the stream from the first to the last tick, or up to the head: those that
        match, and that this client may have. `through` of each piece says how far it goes."""
        check_question(first, last, bytes_max)
        return self._pieces(first, last, filter_text(filter, self._limits), bytes_max)

    def _pieces(self, first: int, last: int, text: str, bytes_max: int) -> Iterator[Fetched]:
        def asking(tick: int) -> _Ask:
            return lambda session: session.fetch(tick, last, text, bytes_max)

        request: int | None = None
        try:
            while first <= last:
                fetched = self._answer(asking(first), request)
                assert isinstance(fetched, Fetched)
                request = None
                if fetched.through < first:
                    return
                first = fetched.through + 1
                if first <= last:
                    request = self._begin(asking(first))
                yield fetched
        finally:
            if request is not None:
                self._answers.pop(request, None)

    def close(self) -> None:
        """Leave the broker."""
        self._hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- asking ---------------------------------------------------------------------------------

    def _begin(self, ask: _Ask) -> int | None:
        """Ask, if that can be at once; the number of the request if it was sent."""
        # All before it may be unanswered, and one that is waited for must find a place.
        if self._plug is None or len(self._answers) >= self._limits.fetches_max - 1:
            return None
        try:
            return self._sent(ask, self._plug)
        except ConnectError:
            self._hang_up()
            return None
        except BaseException:
            self._hang_up()
            raise

    def _sent(self, ask: _Ask, plug: Plug) -> int:
        request, effects = ask(self._session)
        self._answers[request] = None
        for effect in effects:
            assert isinstance(effect, SendFrame)
            plug.send(effect.frame)
        return request

    def _answer(self, ask: _Ask, request: int | None) -> Answer:
        """What the broker says to a request that was sent, or is to be sent, perhaps again."""
        if os.getpid() != self._process:
            raise LocalError("this fetcher is that of another process; make one in each of them")
        deadline = float("inf")
        attempt = 0
        while True:
            try:
                if request not in self._answers:
                    request = self._sent(ask, self._connected())
                answer = self._received(request)
            except (ConnectError, RemoteError) as error:
                self._hang_up()
                deadline = min(deadline, time.monotonic() + self._patience_s)
                if time.monotonic() >= deadline:
                    raise ConnectError(
                        f"the stream could not be read for {self._patience_s:g} s: {error}"
                    ) from error
                self._pause(attempt, deadline)
                attempt += 1
                continue
            except BaseException:
                self._hang_up()
                raise
            if isinstance(answer, Refused):
                raise refusal(answer)
            return answer

    def _received(self, request: int) -> Described | Fetched | Refused:
        """The answer to a request; others that come meanwhile are kept if they are wanted."""
        while (answer := self._answers[request]) is None:
            assert self._plug is not None
            for effect in self._session.frame(time.monotonic(), self._plug.receive()):
                if isinstance(effect, TellAnswer) and effect.answer.request in self._answers:
                    self._answers[effect.answer.request] = effect.answer
                elif isinstance(effect, TellCut):
                    raise self._cut(effect)
        del self._answers[request]
        return answer

    def _cut(self, cut: TellCut) -> ConnectError | ClosedError:
        if cut.code == REPLACED:
            return ClosedError(
                f"another client called {self.name!r} has connected; give each its own name"
            )
        return ConnectError(f"the broker ended the session: {cut.reason}")

    def _pause(self, attempt: int, deadline: float) -> None:
        longest = min(
            self._options.pause_last_s, self._options.pause_first_s * 2 ** min(attempt, 20)
        )
        time.sleep(min(random.uniform(0.0, longest), max(deadline - time.monotonic(), 0.0)))

    def _hang_up(self) -> None:
        """There is no connection, and what was asked on it will not be answered."""
        if self._plug is not None:
            self._plug.close()
        self._plug = None
        self._answers.clear()
        self._session.disconnected(time.monotonic())

    # -- reaching the origin --------------------------------------------------------------------

    def _connected(self) -> Plug:
        """A connection to the origin of the stream."""
        if self._plug is None:
            self._plug = self._reached()
            self._begin_session(self._plug)
        return self._plug

    def _reached(self) -> Plug:
        """The first broker that answers, or the origin as far as anybody knows where it is."""
        waiting = [*self._addresses]
        if self._found is not None:
            waiting.insert(0, self._found)
        problems: dict[Address, str] = {}
        while waiting:
            address = waiting.pop(0)
            if address in problems:
                continue
            try:
                plug = self._dialled(address)
                if plug.theirs.name == self.stream:
                    self._found = address
                    return plug
                problems[address] = f"{address}: this is broker {plug.theirs.name!r}"
                elsewhere = self._origin_by(plug)
            except (ConnectError, RemoteError) as error:
                problems[address] = str(error)
                continue
            if elsewhere is not None:
                waiting.insert(0, elsewhere)
        raise ConnectError("; ".join(problems.values()))

    def _dialled(self, address: Address) -> Plug:
        ours = Greeting(
            kind="client",
            network=self.network,
            name=self.name,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        plug = Plug(address, ours, self._tls, self._options)
        self.network = self.network or plug.theirs.network
        self.stream = self.stream or plug.theirs.name
        return plug

    def _begin_session(self, plug: Plug) -> None:
        for effect in self._session.connected(time.monotonic()):
            assert isinstance(effect, SendFrame)
            plug.send(effect.frame)

    def _origin_by(self, plug: Plug) -> Address | None:
        """Where another broker says that the origin is."""
        try:
            self._plug = plug
            self._begin_session(plug)
            answer = self._received(self._sent(Session.describe, plug))
        finally:
            self._hang_up()
        if not isinstance(answer, Described):
            return None
        if self.stream not in answer.origins:
            known = ", ".join(sorted(answer.origins))
            raise LocalError(
                f"there is no stream {self.stream!r} in network {answer.network!r}; it has {known}"
            )
        text = answer.origins[self.stream]
        if not text:
            return None
        address = parse_address(text)
        check_tls([address], self._tls)
        return address
