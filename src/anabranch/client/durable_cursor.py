"""A durable subscription used only as a cursor: it holds the log and receives nothing.

    cursor = DurableCursor("spark-cursor-q1", "q1", addresses, tls)
    starts = cursor.find(network)                  # None if there is no such subscription
    cursor.create({"a": 17}, network)              # hold stream a after tick 17
    cursor.move({"a": 29}, network)                # ticks up to 29 are done

A durable subscription keeps the log from its position on. A client that returns to one reports the
ticks that it has processed, and the broker believes it: to move a cursor, connect, report and
disconnect. The filter is FALSE, so the broker delivers nothing. Rules:

1. Each call opens one connection, to the first broker that accepts it, and closes it.
2. A cursor that another client moved meanwhile is refused (`CursorRefusedError`): two readers that
   share a cursor would release events that the other one still needs.

State: the number of the last visit. A new process learns it from `find`.
"""

import time
from collections.abc import Mapping, Sequence

from anabranch.client.broker_connections import Tls
from anabranch.client.errors import ClientError, ConnectError
from anabranch.client.options import DEFAULT_OPTIONS, Address
from anabranch.client.sync_connection import SyncConnection
from anabranch.core.session.effects import (
    ResumePoint,
    SendFrame,
    SessionEffects,
    TellCut,
    TellRefused,
    TellStands,
    TellStart,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import UNKNOWN
from anabranch.model.errors import RemoteError
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.wire.greeting import Greeting

#: How long a broker may take to find or create a subscription. The first subscription makes a
#: broker load its matching index, which is slow on a busy machine.
_ANSWER_WITHIN_S = 90.0
_NOTHING = "FALSE"


class CursorRefusedError(ClientError):
    """The broker refuses this position of the cursor."""


class DurableCursor:
    """One cursor. See the rules at the top of this module."""

    def __init__(self, client: str, name: str, addresses: Sequence[Address], tls: Tls) -> None:
        self._client = client
        self._name = name
        self._addresses = tuple(addresses)
        self._tls = tls
        #: Of the last visit; 0 before the first.
        self._number = 0

    def find(self, network: str) -> dict[str, int] | None:
        """Return the first tick it holds of each stream; None if there is no such cursor."""
        return self._visit(ResumePoint(name=self._name, filter=_NOTHING), network)

    def create(self, after: Mapping[str, int], network: str) -> None:
        """Create it, holding each stream after the given tick."""
        position = ResumePoint(
            name=self._name, filter=_NOTHING, start="tick", start_ticks=dict(after)
        )
        self._visit(position, network)

    def move(self, done: Mapping[str, int], network: str) -> None:
        """Report that the ticks up to these have been processed."""
        position = ResumePoint(
            name=self._name, filter=_NOTHING, number=self._number, acked=dict(done)
        )
        self._visit(position, network)

    def _visit(self, position: ResumePoint, network: str) -> dict[str, int] | None:
        connection = self._connect(network)
        try:
            session = ClientSession(self._client)
            _send(connection, session.connected(time.monotonic()))
            _send(connection, session.take_over(time.monotonic(), position))
            return self._answer(connection, session)
        except RemoteError as error:
            raise ConnectError(f"{connection.address}: {error}") from error
        finally:
            connection.close()

    def _answer(self, connection: SyncConnection, session: ClientSession) -> dict[str, int] | None:
        starts: dict[str, int] = {}
        deadline = time.monotonic() + _ANSWER_WITHIN_S
        while time.monotonic() < deadline:
            is_resumed = False
            for effect in session.frame(time.monotonic(), connection.receive()):
                if isinstance(effect, TellStart):
                    starts[effect.stream] = effect.tick
                elif isinstance(effect, TellStands):
                    self._number, is_resumed = effect.number, True
                elif isinstance(effect, TellRefused):
                    if effect.code == UNKNOWN and self._number == 0:
                        return None
                    raise CursorRefusedError(effect.reason)
                elif isinstance(effect, TellCut):
                    raise ConnectError(f"the cursor {self._name!r} was cut: {effect.reason}")
            if is_resumed:
                return starts
        raise ConnectError(
            f"{connection.address}: the durable subscription {self._name!r} was not found within"
            f" {_ANSWER_WITHIN_S:g} s; a broker that may have it does not answer"
        )

    def _connect(self, network: str) -> SyncConnection:
        greeting = Greeting(
            kind="client",
            network=network,
            name=self._client,
            frame_bytes_max=DEFAULT_LIMITS.frame_bytes_max,
        )
        problems = []
        for address in self._addresses:
            try:
                return SyncConnection(address, greeting, self._tls, DEFAULT_OPTIONS)
            except ConnectError as error:
                problems.append(str(error))
        raise ConnectError("; ".join(problems))


def _send(connection: SyncConnection, effects: SessionEffects) -> None:
    for effect in effects:
        assert isinstance(effect, SendFrame)
        connection.send(effect.frame)
