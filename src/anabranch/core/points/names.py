"""Names of join points: the only clients and subscriptions that are called like this."""

from anabranch.model.limits import Limits
from anabranch.model.names import check_name

RESERVED = "pattern/"


def name_of(pattern_id: str) -> str:
    """The client, and the subscription, of a join point."""
    return RESERVED + pattern_id


def check_pattern_id(pattern_id: str, limits: Limits) -> None:
    """What a pattern may be called, so that its join point has a name; `EventError` otherwise."""
    check_name(pattern_id, "the id of a pattern", limits.name_bytes_max - len(RESERVED))
