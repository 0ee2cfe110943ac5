"""Names of join points: the only clients and subscriptions that are called like this."""

RESERVED = "pattern/"


def name_of(pattern_id: str) -> str:
    """The client, and the subscription, of a join point."""
    return RESERVED + pattern_id
