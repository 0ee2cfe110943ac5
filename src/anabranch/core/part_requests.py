"""What origin, edge and join points ask of the broker around them, beside effects.

None of them knows the router or the others. They return these values among their effects,
and the broker turns them into calls. An `Emission` is for the router as it is.
"""

from collections.abc import Mapping, Sequence

import msgspec

from anabranch.core.contract import Effect
from anabranch.core.routing.contract import Emission, WorkDone
from anabranch.model.client_frames import AnyClientFrame
from anabranch.model.filter import Filter
from anabranch.model.frames import AnyCarried
from anabranch.model.version import Version


class CarryTo(msgspec.Struct, frozen=True, gc=False):
    """Take this to another broker, or to this one."""

    target: str
    content: AnyCarried


class ChangeInterest(msgspec.Struct, frozen=True, gc=False):
    """The edge's subscriptions changed; the broker tells the edge the versions of the added."""

    added: Mapping[str, Filter]
    removed: Sequence[str] = ()


class ChangeAdvertisements(msgspec.Struct, frozen=True, gc=False):
    """What is published at the origin changed: filters that came, and that went."""

    added: Sequence[str]
    removed: Sequence[str]


class Marked(msgspec.Struct, frozen=True, gc=False):
    """The own stream has this mark now."""

    mark: int
    vector: Mapping[str, Version]


class RequestSync(msgspec.Struct, frozen=True, gc=False):
    """What was appended and put so far shall be synced; the broker numbers it.

    The asker is told by `synced(now, ticket)` with the ticket it chose, which grows."""

    ticket: int


class JoinPointRequest(msgspec.Struct, frozen=True, gc=False):
    """What a join point does, as a client of its own broker would."""

    session: int


class JoinPointConnected(JoinPointRequest, frozen=True, gc=False):
    """It connects."""


class JoinPointDisconnected(JoinPointRequest, frozen=True, gc=False):
    """It is gone."""


class JoinPointFull(JoinPointRequest, frozen=True, gc=False):
    """It takes no more for the time being, or takes again."""

    full: bool


class JoinPointFrame(JoinPointRequest, frozen=True, gc=False):
    """It says something."""

    frame: AnyClientFrame


PartRequest = (
    Effect
    | CarryTo
    | ChangeInterest
    | ChangeAdvertisements
    | Emission
    | Marked
    | WorkDone
    | RequestSync
    | JoinPointRequest
)
