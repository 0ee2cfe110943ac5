"""Who a session belongs to, and how it ends.

1. A session begins with `Connect`: which protocol the client speaks, and what its name is.
2. A client has one session. A newer one takes the place of the older one, which is cut.

State: volatile.
"""

from anabranch.core.contract import CutClient
from anabranch.core.edge.leaving import Leaving
from anabranch.core.edge.state import State
from anabranch.core.edge.subscriptions import Session
from anabranch.core.points.names import RESERVED
from anabranch.model.client_frames import REPLACED, Code, Connect, Cut
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.names import check_name


class Connecting:
    """Begins and ends sessions. See the rules at the top of this module."""

    def __init__(self, state: State, leaving: Leaving) -> None:
        self._state = state
        self._leaving = leaving

    def older(self, session: Session, frame: Connect) -> Session | None:
        """The session that this one takes the place of; `RemoteError` if it may not."""
        self._check(session, frame)
        return self._state.clients.get(frame.client)

    def connect(self, now: float, session: Session, frame: Connect) -> None:
        """A client says who it is."""
        self._check(session, frame)
        state = self._state
        older = state.clients.get(frame.client)
        if older is not None:
            self.cut(now, older, "the client has connected anew", REPLACED)
        session.client = frame.client
        state.clients[frame.client] = session

    def _check(self, session: Session, frame: Connect) -> None:
        if session.client:
            raise RemoteError(f"client {session.client!r} connects twice in one session")
        if frame.protocol_version != PROTOCOL_VERSION:
            raise RemoteError(
                f"a client speaks protocol version {frame.protocol_version};"
                f" this broker speaks {PROTOCOL_VERSION}"
            )
        if frame.client.startswith(RESERVED) and session.number >= 0:
            raise RemoteError(f"names that begin with {RESERVED!r} are those of join points")
        try:
            check_name(frame.client, "client", self._state.limits.name_bytes_max)
        except EventError as error:
            raise RemoteError(str(error)) from error

    def cut(self, now: float, session: Session, reason: str, code: Code = "") -> None:
        """End a session, and tell its client why."""
        self._state.tell(session, Cut("", reason, code))
        self.over(now, session)
        self._state.out.append(CutClient(session.number, reason))

    def over(self, now: float, session: Session) -> None:
        """A session is no more."""
        del self._state.sessions[session.number]
        if self._state.clients.get(session.client) is session:
            del self._state.clients[session.client]
        self._leaving.session_over(now, session)
