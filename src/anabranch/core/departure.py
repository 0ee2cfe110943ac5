"""Departure: how an edge broker leaves the network without breaking a guarantee.

A relay may leave at any time. An edge has a log that others may need, durable subscriptions that
no other broker holds, and publishers that wait for confirmations. So it *departs* while it is still
part of the network, and the others adopt a network without it only once it is *drained*.

Rules

1. Refusal. A departing broker accepts no new events. The refusal is final, so a refused event is in
   no log. Batches whose intent is on disk (`batches`) are still written. The broker closes its
   sessions so that clients move elsewhere with their subscriptions. A client that reconnects can
   learn the fate of events that it published or committed before, and nothing else.
2. Drained. The broker is drained when no batch is in progress, every edge is done with every event
   of its log, the log has deleted them, no durable subscription is left (including ended ones that
   other edges have not all yielded), and all of that is on disk. Later requests cannot undo this:
   holds are not granted for deleted ticks.
3. Persistence. The departure is recorded in the catalog, so the broker does not accept events again
   after a crash. It applies to the network of that revision; a later revision that lists the broker
   as an edge brings it back. An unreadable record counts as a departure from the current revision.

State: the row `departing` of the table `broker`: [revision, newest tick at the time].
"""

import msgspec

from anabranch.core.catalog_recovery import decoded, set_aside
from anabranch.core.contract import Put, Recovered
from anabranch.model.event import Count
from anabranch.model.frame_parts import Position

TABLE = "broker"
KEY = "departing"
#: The reason that clients receive.
REASON = "this broker is leaving the network; connect to another one"


class Departure(msgspec.Struct, frozen=True, array_like=True):
    """The departure of a broker."""

    #: Revision of the network that it leaves.
    revision: int
    #: The newest tick at the time; later ticks have no events, except those of batches.
    head: int

    def put(self) -> Put:
        return Put(TABLE, KEY, _encoder.encode(self))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Count, Position])


def stored_departure(recovered: Recovered, revision: int, newest: int) -> Departure | None:
    """The departure on record, of any revision; an unreadable row counts for this revision.

    A crash may keep the row and lose the newest ticks, so `head` is limited to `newest`."""
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
    """Delete the record."""
    return Put(TABLE, KEY, None)
