"""What a join point subscribes to: the events that its parts match, and what it has reported, since
that tells it after a crash or a move what not to report again.
"""

from anabranch.core.patterns.scheme import Scheme
from anabranch.model.pattern.match import subscription_to


def parts_filter(scheme: Scheme) -> str:
    """All that the parts of a pattern match."""
    return " OR ".join(dict.fromkeys(f"({part.filter})" for part in scheme.pattern.parts))


def wanted_filter(scheme: Scheme) -> str:
    """What a join point subscribes to: all that its parts match, and its own notifications."""
    return f"{parts_filter(scheme)} OR {subscription_to(scheme.pattern_id)}"
