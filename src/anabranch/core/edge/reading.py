"""Reading an event at an edge: what it says, and whether it may still be delivered here.

An event may limit its life and its way. Both limits are kept at the edge, where they are the same
for what comes live and for what is replayed. An event beyond a limit is no match for anybody, just
like silence:

1. *Time*: it is older than its limit, from when its origin made the tick to the edge's clock now.
2. *Hops*: the edge's site is farther from the origin's site than the limit.

An event with *destinations* is for the clients it names, and matches nobody else's subscription.

Attributes are not decoded for that, nor for matching: the index reads them as they came. An event
that cannot be read is the fault of its origin, not of the neighbour that passed it on, and
asking again would bring the same: its tick is withheld as `unreadable`.
"""

from collections.abc import Hashable

from anabranch.core.line import Run
from anabranch.matching.doubts import Check
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import Envelope, decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import Attributes
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits

_NS_PER_S = 1e9


def read(run: Run, limits: Limits) -> Envelope | None:
    """The event of a run, as far as it is decoded; None for one that turns out to be unreadable."""
    if run.envelope is None and run.datum is not None and not run.reason:
        try:
            run.envelope = decode_envelope(run.datum.body, limits)
        except RemoteError:
            _mark_unreadable(run)
    return run.envelope


def matching(run: Run, envelope: Envelope, index: MatchIndex) -> list[Hashable]:
    """Who wants the event; nobody if its attributes turn out to be unreadable."""
    try:
        return index.match(envelope)
    except RemoteError:
        _mark_unreadable(run)
        return []


def narrowed(
    run: Run, envelope: Envelope, index: MatchIndex
) -> tuple[list[Hashable], list[tuple[Hashable, Check]], Attributes] | None:
    """Who wants the event for sure, who perhaps and by which check, and what to check; None if its
    attributes turn out to be unreadable."""
    try:
        sure, left = index.narrow(envelope)
        return sure, left, envelope.attributes() if left else {}
    except RemoteError:
        _mark_unreadable(run)
        return None


def is_match(run: Run, envelope: Envelope, filter: Filter) -> bool:
    """Whether one filter wants the event; no if its attributes turn out to be unreadable."""
    try:
        return filter.matches(envelope.attributes())
    except RemoteError:
        _mark_unreadable(run)
        return False


def _mark_unreadable(run: Run) -> None:
    # The datum stays: whoever keeps the run has counted its bytes.
    run.reason = "unreadable"
    run.envelope = None


def is_addressed(envelope: Envelope, client: str) -> bool:
    """Whether an event is for this client, if its filter wants it."""
    destinations = envelope.header.control.destinations
    return not destinations or client in destinations


def is_beyond_limits(now: float, run: Run, envelope: Envelope, hops: int) -> bool:
    """Whether an event has lived or gone as long as it may."""
    control = envelope.header.control
    if control.hop_limit is not None and hops > control.hop_limit:
        return True
    if control.time_limit_ns is None or run.datum is None:
        return False
    return now * _NS_PER_S - run.datum.time_ns > control.time_limit_ns
