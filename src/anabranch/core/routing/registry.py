"""The registry of routings that a network may select by name.

A new routing needs its own package and one line here. State: none.
"""

from collections.abc import Callable
from typing import NamedTuple

from anabranch.core.options import Options, RoutingName
from anabranch.core.routing.contract import Router
from anabranch.core.routing.flood import FloodRouter
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.limits import Limits
from anabranch.model.network import Network

__all__ = ["ROUTINGS", "RouterMaker", "RoutingName"]

#: Creates a broker's router from its name, the network, options, limits and the broker's life.
RouterMaker = Callable[[str, Network, Options, Limits, int], Router]


class RegisteredRouting(NamedTuple):
    """One routing that a network may select."""

    make: RouterMaker
    #: Whether the graph of brokers must be a tree.
    needs_tree: bool


ROUTINGS: dict[RoutingName, RegisteredRouting] = {
    "flood": RegisteredRouting(FloodRouter, needs_tree=True),
    "tree": RegisteredRouting(TreeRouter, needs_tree=True),
    "mesh": RegisteredRouting(MeshRouter, needs_tree=False),
}
