"""Batches for code that waits: tasks and drivers of a data pipeline.

    with Stager("127.0.0.1:4100", stream="edge-1") as stager:
        stager.stage("task-7.attempt-1", chunks)
        batch = stager.commit(sink="quotes", query="q1", batch=42, tokens=["task-7.attempt-1"])

The same as `batches`, with two differences: events come as drafts (`model.encoding`) in chunks, so
that whoever has millions of them encodes them as it likes; and it is a plain socket, without an
event loop or a thread, for processes that fork. Rules:

1. A stager speaks to the origin of one stream, and to nobody else: everything of a sink is there.
   Any broker says where that is. Without a name for the stream, the broker at the *first* address
   is it, since the first that happens to answer might be another one every time.
2. At most `_OPEN_MAX` chunks are on their way; the next is taken from the iterable when there is
   room. So chunks are made while others travel.
3. A connection that breaks is made again, and what was not answered is sent again; the broker knows
   it. What is refused for the time being is sent again too. A broker that is away, or takes no more
   chunks, for `patience_s` is a `BatchUnknownError` that says why, or a `ConnectError` if it was
   never reached.
4. One thread at a time. A stager cannot be pickled; make it where it is used.

State: a connection, and what is unanswered. Whoever comes after stages anew and commits again.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from random import uniform
from ssl import SSLContext
from types import TracebackType
from typing import Literal, Self

from anabranch.client.batches import Batch
from anabranch.client.broker_connections import check_tls
from anabranch.client.errors import (
    BatchRefusedError,
    BatchUnknownError,
    ClosedError,
    ConnectError,
)
from anabranch.client.options import Address, ClientOptions, parse_address
from anabranch.client.stream_reader import Fetcher
from anabranch.client.sync_connection import SyncConnection
from anabranch.core.session.effects import (
    SendFrame,
    SessionEffects,
    TellCommitted,
    TellCut,
    TellOfBatch,
    TellStagingRefused,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import OTHER_BATCH, REPLACED, Alive
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name
from anabranch.wire.greeting import Greeting

_OPEN_MAX = 16
#: A chunk may take a while to be sent to a broker that is busy.
_OPTIONS = ClientOptions(heartbeat_s=5.0, dead_after_s=10.0)
#: Before the batch that is under way is asked for again.
_AGAIN_S = 0.1
#: A broker that is there gets this long for a batch, which may be as large as what can be staged.
_COMMIT_S = 600.0

Drafts = Sequence[bytes]


class Stager:
    """Stages and commits at one origin. See the rules at the top of this module."""

    def __init__(
        self,
        *addresses: str,
        stream: str = "",
        name: str | None = None,
        tls: SSLContext | Literal[False] | None = None,
        patience_s: float = 30.0,
        options: ClientOptions = _OPTIONS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Nothing is dialled before something is asked. The arguments are those of `Fetcher`."""
        if not addresses:
            raise LocalError("give the address of at least one broker, such as 127.0.0.1:4100")
        self._addresses = [parse_address(text) for text in addresses]
        check_tls(self._addresses, tls)
        self.name = f"stager-{secrets.token_hex(8)}" if name is None else name
        check_name(self.name, "name", limits.name_bytes_max)
        #: The broker; "" until it is known.
        self.stream = stream
        self._network = ""
        self._tls = tls
        self._patience_s = patience_s
        self._options = options
        self._limits = limits
        self._found: Address | None = None
        self._plug: SyncConnection | None = None
        self._session = ClientSession(self.name, limits=limits)
        #: Requests that are not answered.
        self._open: set[int] = set()
        self._committed: TellCommitted | None = None
        #: What is asked for, and why there is no answer, for people.
        self._what = ""
        self._problem = ""

    # -- for the program ------------------------------------------------------------------------

    def stage(self, token: str, chunks: Iterable[Drafts]) -> int:
        """Bring events for a later commit, under a token that nobody else uses; how many, when all
        of them are safe at the broker."""
        check_name(token, "token", self._limits.name_bytes_max)
        self._what = f"staging {token!r}"
        staging = self._session.staging
        count = 0
        for index, (chunk, is_last) in enumerate(_marked(chunks)):
            self._hear_until(_OPEN_MAX - 1, self._patience_s)
            self._ask(*staging.stage(token, index, chunk, is_last))
            count += len(chunk)
        self._hear_until(0, self._patience_s)
        return count

    def commit(self, *, sink: str, query: str, batch: int, tokens: Iterable[str]) -> Batch:
        """Make what is staged with these tokens, in this order, a batch of the sink; returns when
        all of it is in the stream. If another batch is under way, that comes first."""
        self._what = f"batch {batch} of {sink!r}"
        names = tuple(tokens)
        deadline = time.monotonic() + self._patience_s
        while True:
            self._ask(*self._session.staging.commit(sink, query, batch, names))
            try:
                self._hear_until(0, max(self._patience_s, _COMMIT_S))
            except BatchRefusedError as error:
                if error.code != OTHER_BATCH or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_S)
                continue
            return self._batch()

    def _batch(self) -> Batch:
        answer, self._committed = self._committed, None
        assert answer is not None
        return Batch(
            sink=answer.sink,
            batch=answer.batch,
            stream=self.stream,
            first=answer.first,
            last=answer.last,
            was_known=answer.was_known,
        )

    def discard(self, tokens: Iterable[str]) -> None:
        """Tell the broker that nobody will commit these; it has heard that when this returns. A
        broker that is away is a `ConnectError` at once: it drops them by itself later."""
        self._withdraw()
        try:
            plug = self._connected()
            self._perform(self._session.staging.discard(tokens))
            plug.send(Alive())
            while not isinstance(plug.receive(), Alive):
                pass
        except (ConnectError, RemoteError) as error:
            self._lose(error)
            raise ConnectError(self._problem) from error

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

    # -- asking and hearing ---------------------------------------------------------------------

    def _ask(self, request: int, effects: SessionEffects) -> None:
        """Send a request, at once or with the next connection."""
        self._open.add(request)
        try:
            self._perform(effects)
        except ConnectError as error:
            self._lose(error)

    def _perform(self, effects: SessionEffects) -> None:
        for effect in effects:
            assert isinstance(effect, SendFrame)
            assert self._plug is not None
            self._plug.send(effect.frame)

    def _hear_until(self, open_max: int, within_s: float) -> None:
        """Hear the broker until so few requests are open; rule 3."""
        reach_by = time.monotonic() + self._patience_s
        answer_by = time.monotonic() + within_s
        attempt = 0
        while len(self._open) > open_max:
            try:
                if self._hear():
                    answer_by = time.monotonic() + within_s
                reach_by, attempt = time.monotonic() + self._patience_s, 0
            except (ConnectError, RemoteError) as error:
                self._lose(error)
                self._pause(attempt, reach_by)
                attempt += 1
            except BatchRefusedError:
                raise
            except BaseException:
                # A frame may have been read in part.
                self._hang_up()
                raise
            if time.monotonic() >= min(reach_by, answer_by):
                raise self._given_up()

    def _hear(self) -> bool:
        """Let the broker say something; whether that was an answer."""
        plug = self._connected()
        again_at = self._session.next_deadline()
        if again_at is not None:
            # Something was refused for now. What else is answered meanwhile can wait.
            time.sleep(max(again_at - time.monotonic(), 0.0))
            self._perform(self._session.time_passed(max(again_at, time.monotonic())))
        has_answered = False
        for effect in self._session.frame(time.monotonic(), plug.receive()):
            if isinstance(effect, TellCut):
                raise self._cut(effect)
            if isinstance(effect, TellOfBatch):
                has_answered |= self._answered(effect)
        return has_answered

    def _answered(self, answer: TellOfBatch) -> bool:
        """Take note of an answer; false if it is none yet. A refusal is raised."""
        if isinstance(answer, TellStagingRefused):
            self._problem = answer.reason
            if not answer.final:
                return False
            self._withdraw()
            raise BatchRefusedError(self._what, answer.reason, answer.code)
        self._open.discard(answer.request)
        if isinstance(answer, TellCommitted):
            self._committed = answer
        return True

    def _withdraw(self) -> None:
        """Nobody waits for anything any more."""
        self._session.staging.withdraw(self._open)
        self._open.clear()

    def _cut(self, cut: TellCut) -> ConnectError | ClosedError:
        if cut.code == REPLACED:
            return ClosedError(
                f"another client called {self.name!r} has connected; give each its own name"
            )
        return ConnectError(f"the broker ended the session: {cut.reason}")

    def _given_up(self) -> ConnectError | BatchUnknownError:
        self._withdraw()
        if self._found is None:
            return ConnectError(
                f"no broker for {self._what} within {self._patience_s:g} s: {self._problem}"
            )
        why = self._problem or "it said nothing"
        return BatchUnknownError(
            f"{self._what} was not answered by {self.stream!r} in time: {why};"
            " it may be there or not"
        )

    # -- the connection -------------------------------------------------------------------------

    def _lose(self, error: Exception) -> None:
        self._problem = str(error)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._plug is not None:
            self._plug.close()
        self._plug = None
        self._session.disconnected(time.monotonic())

    def _pause(self, attempt: int, deadline: float) -> None:
        options = self._options
        longest = min(options.pause_last_s, options.pause_first_s * 2 ** min(attempt, 20))
        time.sleep(min(uniform(0.0, longest), max(deadline - time.monotonic(), 0.0)))

    def _connected(self) -> SyncConnection:
        """A connection to the origin, on which everything unanswered was sent again."""
        if self._plug is None:
            self._plug = self._reached()
            self._perform(self._session.connected(time.monotonic()))
        return self._plug

    def _reached(self) -> SyncConnection:
        """The origin, wherever it is."""
        given = self._addresses if self.stream else self._addresses[:1]
        places = given if self._found is None else [self._found, *given]
        problems: dict[Address, str] = {}
        for address in dict.fromkeys(places):
            try:
                return self._dialled(address)
            except ConnectError as error:
                problems[address] = str(error)
        elsewhere = self._asked_for() if self.stream else None
        if elsewhere is None or elsewhere in problems:
            raise ConnectError("; ".join(problems.values()))
        return self._dialled(elsewhere)

    def _dialled(self, address: Address) -> SyncConnection:
        """A connection to this place, if the origin is there."""
        ours = Greeting(
            kind="client",
            network=self._network,
            name=self.name,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        plug = SyncConnection(address, ours, self._tls, self._options)
        there = plug.theirs.name
        if self.stream and there != self.stream:
            plug.close()
            raise ConnectError(f"{address}: this is broker {there!r}, not {self.stream!r}")
        self.stream, self._network, self._found = there, plug.theirs.network, address
        return plug

    def _asked_for(self) -> Address | None:
        """Where the brokers that can be reached say that the origin is."""
        texts = map(str, self._addresses)
        try:
            with Fetcher(*texts, tls=self._tls, patience_s=0.0) as fetcher:
                origins = fetcher.describe().origins
        except ConnectError:
            return None
        if self.stream not in origins:
            known = ", ".join(sorted(origins))
            raise LocalError(f"there is no stream {self.stream!r} in this network; it has {known}")
        text = origins[self.stream]
        if not text:
            return None
        address = parse_address(text)
        check_tls([address], self._tls)
        return address


def _marked(chunks: Iterable[Drafts]) -> Iterator[tuple[Drafts, bool]]:
    """Each chunk, and whether it is the last; one that is empty if there is none."""
    before: Drafts | None = None
    for chunk in chunks:
        if before is not None:
            yield before, False
        before = chunk
    yield before or (), True
