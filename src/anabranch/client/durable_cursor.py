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
from anabranch.client.sync_session import SyncSession
from anabranch.core.session.effects import (
    ResumePoint,
    SubscriptionAccepted,
    SubscriptionRefused,
    SubscriptionStarted,
)
from anabranch.model.client_frames import UNKNOWN
from anabranch.model.errors import RemoteError
from anabranch.model.limits import DEFAULT_LIMITS

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
        session = SyncSession(
            self._addresses,
            name=self._client,
            network=network,
            tls=self._tls,
            options=DEFAULT_OPTIONS,
            limits=DEFAULT_LIMITS,
        )
        try:
            session.connect()
            session.perform(session.state.resume(time.monotonic(), position))
            return self._answer(session)
        except RemoteError as error:
            raise ConnectError(f"{session.address}: {error}") from error
        finally:
            session.hang_up()

    def _answer(self, session: SyncSession) -> dict[str, int] | None:
        starts: dict[str, int] = {}
        deadline = time.monotonic() + _ANSWER_WITHIN_S
        while time.monotonic() < deadline:
            is_resumed = False
            for effect in session.receive():
                if isinstance(effect, SubscriptionStarted):
                    starts[effect.stream] = effect.tick
                elif isinstance(effect, SubscriptionAccepted):
                    self._number, is_resumed = effect.number, True
                elif isinstance(effect, SubscriptionRefused):
                    if effect.code == UNKNOWN and self._number == 0:
                        return None
                    raise CursorRefusedError(effect.reason)
            if is_resumed:
                return starts
        raise ConnectError(
            f"{session.address}: the durable subscription {self._name!r} was not found within"
            f" {_ANSWER_WITHIN_S:g} s; a broker that may have it does not answer"
        )
