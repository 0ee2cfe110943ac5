"""What a join point may ask of its broker: who is there, how far streams have come, and who wants
what. These are questions only; whatever is to be done is returned (`core.asks`).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from anabranch.core.placement.scouting import Scout
from anabranch.model.event import Value
from anabranch.model.network import Network
from anabranch.model.version import Version

#: Stream → the tick up to which nothing is missing, and the time up to which nothing will come.
Reach = Mapping[str, tuple[int, int]]


class Outlook(NamedTuple):
    """The broker around a join point, as far as that needs it."""

    name: str
    #: The streams of the network.
    streams: tuple[str, ...]
    #: Of a subscription.
    reach: Callable[[str], Reach]
    #: The versions of interest that the own origin's newest tick has.
    vector: Callable[[], Mapping[str, Version]]
    #: The newest tick of the own stream.
    head: Callable[[], int]
    #: Whether a client of the broker wants such an event, other than the one with this name.
    wants: Callable[[Mapping[str, Value], str], bool]
    network: Network
    life: int
    #: None where routing cannot tell places apart.
    scout: Scout | None = None
