"""Requests of the origin, the edge and the join points to their broker, in addition to effects.

The parts know neither the router nor each other. They return these values among their effects, and
the broker turns them into calls. An `Emission` goes to the router unchanged.
"""

from collections.abc import Mapping, Sequence

import msgspec

from anabranch.core.contract import Effect
from anabranch.core.routing.contract import Emission, WorkDone
from anabranch.model.client_frames import AnyClientFrame
from anabranch.model.filter import Filter
from anabranch.model.frames import AnyCarried
from anabranch.model.replication import CopySet, Life
from anabranch.model.version import Version


class CarryTo(msgspec.Struct, frozen=True, gc=False):
    """Carry a message to another broker, or to this one."""

    target: str
    content: AnyCarried


class ChangeInterest(msgspec.Struct, frozen=True, gc=False):
    """The edge's subscriptions changed; the broker reports the versions of the added ones."""

    added: Mapping[str, Filter]
    removed: Sequence[str] = ()


class ChangeAdvertisements(msgspec.Struct, frozen=True, gc=False):
    """The origin's advertisements changed: added and removed filters."""

    added: Sequence[str]
    removed: Sequence[str]


class AnnounceMark(msgspec.Struct, frozen=True, gc=False):
    """This broker's stream has a new mark."""

    mark: int
    vector: Mapping[str, Version]


class RequestSync(msgspec.Struct, frozen=True, gc=False):
    """Sync all appends and puts so far.

    The broker chooses the sync number, and calls `synced(now, ticket)` of the requesting part with
    this ticket. Tickets of a part grow."""

    ticket: int


class AppendLife(msgspec.Struct, frozen=True, gc=False):
    """A life of this broker's stream has begun: append its record."""

    life: Life
    copies: CopySet


class JoinPointRequest(msgspec.Struct, frozen=True, gc=False):
    """An action of a join point, as a client of its own broker."""

    session: int


class JoinPointConnected(JoinPointRequest, frozen=True, gc=False):
    """The join point connects."""


class JoinPointDisconnected(JoinPointRequest, frozen=True, gc=False):
    """The join point disconnects."""


class JoinPointFull(JoinPointRequest, frozen=True, gc=False):
    """The join point accepts no more deliveries for now, or accepts them again."""

    full: bool


class JoinPointFrame(JoinPointRequest, frozen=True, gc=False):
    """The join point sends a frame."""

    frame: AnyClientFrame


PartRequest = (
    Effect
    | CarryTo
    | ChangeInterest
    | ChangeAdvertisements
    | Emission
    | AnnounceMark
    | WorkDone
    | RequestSync
    | AppendLife
    | JoinPointRequest
)
