"""Routers that break one rule of the contract each, to prove that the suite can object."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from anabranch.core.contract import Sync
from anabranch.core.options import Options
from anabranch.core.routing.contract import InterestVersions, Outcome
from anabranch.core.routing.flood import FloodRouter
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import AnyCarried, Carry, Done, Knowledge, LinkFrame
from anabranch.model.limits import Limits
from anabranch.model.network import Network
from anabranch.model.version import Version
from tests.conformance.unruly import UnrulyRouter


class SilentLiar(UnrulyRouter):
    """Rule 1: every fifth event is said to be silence, whoever wants it."""

    def filtered(
        self, edge: str, data: Sequence[Datum], silent: Sequence[tuple[int, int]]
    ) -> tuple[Version, list[Datum], list[tuple[int, int]]]:
        version, passed, quiet = super().filtered(edge, data, silent)
        kept = [datum for datum in passed if datum.tick % 5]
        gone = [(datum.tick, datum.tick) for datum in passed if not datum.tick % 5]
        return version, kept, sorted([*quiet, *gone])


class Forger(FloodRouter):
    """Rule 1: every event of a stream comes as the first one that was seen of it."""

    def __init__(
        self, name: str, network: Network, options: Options, limits: Limits, life: int
    ) -> None:
        super().__init__(name, network, options, limits, life)
        self._first: dict[str, bytes] = {}

    def frame(self, now: float, peer: str, frame: LinkFrame) -> list[Outcome]:
        if isinstance(frame, Knowledge) and frame.data:
            body = self._first.setdefault(frame.stream, frame.data[0].body)
            forged = [msgspec.structs.replace(datum, body=body) for datum in frame.data]
            frame = msgspec.structs.replace(frame, data=forged)
        return super().frame(now, peer, frame)


class Deaf(UnrulyRouter):
    """Rule 3: subscriptions are in a version that never comes."""

    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        for outcome in super().interest_changes(now, added, removed):
            if isinstance(outcome, InterestVersions):
                told = outcome.versions.items()
                yield InterestVersions({n: Version(v.life, v.counter + 1_000) for n, v in told})
            else:
                yield outcome


class Tamperer(FloodRouter):
    """Rule 5: what is carried changes on the way."""

    def frame(self, now: float, peer: str, frame: LinkFrame) -> list[Outcome]:
        if isinstance(frame, Carry) and isinstance(frame.content, Done) and frame.content.tick:
            done = msgspec.structs.replace(frame.content, tick=frame.content.tick - 1)
            frame = msgspec.structs.replace(frame, content=done)
        return super().frame(now, peer, frame)


class Meddler(FloodRouter):
    """Rule 6: asks for what is not a router's to ask."""

    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        return [*super().carry(now, target, content), Sync(1)]


class Censor(FloodRouter):
    """Rule 6: passes nothing on before it knows that it is wanted, and it never does."""

    def frame(self, now: float, peer: str, frame: LinkFrame) -> list[Outcome]:
        if isinstance(frame, Knowledge):
            silent = [*frame.silent, *((datum.tick, datum.tick) for datum in frame.data)]
            frame = msgspec.structs.replace(frame, data=[], silent=sorted(silent))
        return super().frame(now, peer, frame)
