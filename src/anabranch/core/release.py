"""Release: how far the log of a stream may be deleted.

Every edge of the network tells, now and then, up to which tick it needs nothing any more: it is
*done*. What all edges are done with may be deleted; an edge that was never heard of is done with
what was deleted before, and nothing else. Rules:

1. An edge's done never goes back by itself: what says less than is known is old, and ignored.
2. A *hold* lowers it: a subscription that moves to an edge may stand behind what that edge is done
   with. It is granted if the log still has what it asks for, and answered when it is on disk. It
   lasts until the edge says more.
3. What an edge said before a hold and arrives after it is void: the numbers of its requests tell.
   An edge that does not number is believed.
4. An edge that has left the network needs nothing. Its row goes with the next checkpoint.
5. *Waive.* A subscription may hold back a limited number of bytes of the log
   (`held_back_bytes_max`). Beyond that its edge counts as done, whatever it says, and the
   subscription is told later that the ticks are withheld. So one client that never acknowledges
   cannot fill a log and stop every publisher.

State: in the catalog (table `done`), where a hold is put at once, and the rest before records are
deleted. A value that is too low after a crash only delays deletion. A row that cannot be read, or
says more than the log has, counts as that of an edge that was never heard of.
"""

from collections.abc import Iterable

import msgspec

from anabranch.core.catalog_recovery import rows
from anabranch.core.contract import Put, Recovered
from anabranch.model.event import Count
from anabranch.model.frame_parts import Position

TABLE = "done"

#: Tick, and request number of the newest hold.
_Stored = tuple[int, int]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Position, Count])


class Release:
    """What each edge is done with. See the rules at the top of this module."""

    __slots__ = ("_done", "_holds", "_left", "_stored")

    def __init__(self, edges: Iterable[str], recovered: Recovered, forgotten: int) -> None:
        last = recovered.last_tick

        def read(edge: str, value: bytes) -> _Stored:
            found = _decoder.decode(value)
            if found[0] > last:
                raise ValueError(f"{edge!r} is done with tick {found[0]}, and the newest is {last}")
            return found

        stored = rows(recovered, TABLE, read)
        #: Invariant: every edge of the network is in here, in the order of the network.
        self._done: dict[str, int] = {}
        #: Edge → request number of its newest hold.
        self._holds: dict[str, int] = {}
        self._stored: dict[str, _Stored] = {}
        for edge in edges:
            found = stored.get(edge, (forgotten, 0))
            self._done[edge], self._holds[edge] = self._stored[edge] = found
        #: Edges that are in the catalog only.
        self._left = [edge for edge in stored if edge not in self._done]

    def is_known(self, edge: str) -> bool:
        """Whether there is such an edge in the network."""
        return edge in self._done

    def done(self, edge: str, tick: int, request: int) -> None:
        """This edge is done with everything up to this tick."""
        if request == 0 or request >= self._holds[edge]:
            self._done[edge] = max(self._done[edge], tick)

    def hold(self, edge: str, tick: int, request: int) -> list[Put]:
        """This edge needs everything after this tick, from now on; what to put for it."""
        self._holds[edge] = max(self._holds[edge], request)
        self._done[edge] = min(self._done[edge], tick)
        return [self._put(edge)]

    def waive(self, tick: int) -> list[str]:
        """Keep nothing up to this tick for any edge (rule 5); return the edges that needed it."""
        needing = self.needing(tick)
        for edge in needing:
            self._done[edge] = tick
        return needing

    def all_done(self) -> int:
        """What every edge is done with."""
        return min(self._done.values())

    def needing(self, tick: int) -> list[str]:
        """The edges that are not done with this tick."""
        return [edge for edge, done in self._done.items() if done < tick]

    def checkpoint(self) -> list[Put]:
        """What the catalog should have before records are deleted."""
        now = {edge: (tick, self._holds[edge]) for edge, tick in self._done.items()}
        gone = [Put(TABLE, edge, None) for edge in self._left]
        self._left = []
        return gone + [self._put(edge) for edge, each in now.items() if each != self._stored[edge]]

    def _put(self, edge: str) -> Put:
        found = self._stored[edge] = (self._done[edge], self._holds[edge])
        return Put(TABLE, edge, _encoder.encode(found))
