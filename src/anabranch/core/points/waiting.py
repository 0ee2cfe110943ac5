"""How many requests about patterns may wait for an answer at a broker.

Those of one session are bounded too, so that one client cannot have all others refused.
"""

from typing import Final

#: Of all sessions together, and of one.
WAITING_MAX: Final = 1_024
WAITING_OF_SESSION_MAX: Final = 128


def is_too_many(waiting: int, of_session: int) -> bool:
    """Whether another request is refused, where so many wait."""
    return waiting >= WAITING_MAX or of_session >= WAITING_OF_SESSION_MAX
