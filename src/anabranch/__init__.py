"""Anabranch: content-based publish/subscribe that keeps its promises.

from anabranch import Event, Filter, MatchIndex, attr
"""

from anabranch.matching.index import MatchIndex
from anabranch.matching.matches import Matches
from anabranch.model.errors import (
    AnabranchError,
    DuplicateIdError,
    EventError,
    FilterError,
    FilterLimitError,
    LocalError,
    RemoteError,
    UnknownIdError,
)
from anabranch.model.event import Event
from anabranch.model.filter import Filter
from anabranch.model.language.builder import attr
from anabranch.model.limits import DEFAULT_LIMITS, Limits

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_LIMITS",
    "AnabranchError",
    "DuplicateIdError",
    "Event",
    "EventError",
    "Filter",
    "FilterError",
    "FilterLimitError",
    "Limits",
    "LocalError",
    "MatchIndex",
    "Matches",
    "RemoteError",
    "UnknownIdError",
    "attr",
]
