"""Departing: how a broker leaves its network without breaking a promise.

A relay may go at any time. An edge has a log that others may need, durable subscriptions that only
it knows, and publishers that wait for its word. So it *departs* while it is still part of the
network; the others take a network without it only when it is *drained*. Rules:

1. From the moment it is told, it takes no new event: the refusal is final, so the event is in no
   log; but batches that it intends to write (`batches`) it writes. It cuts its sessions, so that
   clients go elsewhere with their subscriptions. Whoever comes back can learn the fate of what it
   published or committed before, and nothing more.
2. It is drained when no batch is under way, when every edge is done with every event of its log,
   when the log has forgotten them, when there is no durable subscription here, not even one that
   has ended and is not yielded by all other edges, and when the disk has all that. No later request
   can undo this: holds are not granted for what is forgotten.
3. That it departs is in the catalog, so a crash does not make it take events again. It holds for
   the network of that revision: whoever gives it a later one with itself as an edge wants it back.
   A row that cannot be read still says that it departs, from the network of this revision.

State: the row `departing` of the table `broker`: [revision, newest tick when it was told].
"""

import msgspec

from anabranch.core.catalog_recovery import decoded, set_aside
from anabranch.core.contract import Put, Recovered
from anabranch.model.event import Count
from anabranch.model.frame_parts import Position

TABLE = "broker"
KEY = "departing"
#: What clients are told.
REASON = "this broker leaves the network; go to another one"


class Departure(msgspec.Struct, frozen=True, array_like=True):
    """A broker is on its way out."""

    #: Of the network that it leaves.
    revision: int
    #: The newest tick it had then: no later one has an event, but for those of batches.
    head: int

    def put(self) -> Put:
        """Remember it."""
        return Put(TABLE, KEY, _encoder.encode(self))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Count, Position])


def stored_departure(recovered: Recovered, revision: int, newest: int) -> Departure | None:
    """What the catalog has, for whichever network; an unreadable row is of this revision.

    A crash may have kept the row and lost the newest ticks, so it is not of more than there are."""
    good, bad = decoded(recovered, TABLE, _read)
    for each in bad:
        if each.key == KEY:
            found = Departure(revision, newest)
            set_aside(recovered, each, _encoder.encode(found))
            return found
    stored = good.get(KEY)
    return None if stored is None else Departure(stored.revision, min(stored.head, newest))


def _read(key: str, value: bytes) -> Departure | None:
    return Departure(*_decoder.decode(value)) if key == KEY else None


def void() -> Put:
    """Forget it."""
    return Put(TABLE, KEY, None)
