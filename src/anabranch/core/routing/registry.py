"""The routings that a network may choose, by name.

A new routing needs a folder of its own and one line here. State: none.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from anabranch.core.options import Options
from anabranch.core.routing.contract import Router
from anabranch.core.routing.flood import FloodRouter
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.limits import Limits
from anabranch.model.network import Network

RoutingName = Literal["flood", "tree", "mesh"]
#: Makes the router of a broker: of its name, the network, options, limits, and the broker's life.
RouterMaker = Callable[[str, Network, Options, Limits, int], Router]


class Routing(NamedTuple):
    """One routing."""

    make: RouterMaker
    #: Whether it works only where the graph of brokers is a tree.
    needs_tree: bool


ROUTINGS: dict[RoutingName, Routing] = {
    "flood": Routing(FloodRouter, needs_tree=True),
    "tree": Routing(TreeRouter, needs_tree=True),
    "mesh": Routing(MeshRouter, needs_tree=False),
}
