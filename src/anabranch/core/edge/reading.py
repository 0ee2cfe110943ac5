"""Reading an event at an edge: what it says, and whether it may still be delivered here.

An event may limit its life and its way. Both limits are kept at the edge, where they are the same
for what comes live and for what is replayed. An event beyond a limit is no match for anybody, just
like silence:

1. *Time*: it is older than its limit, from when its origin made the tick to the edge's clock now.
2. *Hops*: the edge's site is farther from the origin's site than the limit.

An event that cannot be read is the fault of its origin, not of the neighbour that passed it on, and
asking again would bring the same: its tick is withheld as `unreadable`.
"""

from anabranch.core.line import Run
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event
from anabranch.model.limits import Limits

_NS_PER_S = 1e9


def read(run: Run, limits: Limits) -> Event | None:
    """The event of a run, without its payload; None for one that turns out to be unreadable."""
    if run.event is None and run.datum is not None and not run.reason:
        try:
            envelope = decode_envelope(run.datum.body, limits)
            run.event = Event.of_checked_parts(envelope.header, envelope.attributes(), b"")
        except RemoteError:
            # The datum stays: whoever keeps the run has counted its bytes.
            run.reason = "unreadable"
    return run.event


def is_beyond_limits(now: float, run: Run, event: Event, hops: int) -> bool:
    """Whether an event has lived or gone as long as it may."""
    control = event.header.control
    if control.hop_limit is not None and hops > control.hop_limit:
        return True
    if control.time_limit_ns is None or run.datum is None:
        return False
    return now * _NS_PER_S - run.datum.time_ns > control.time_limit_ns
