"""Reload: how a running broker applies a new network file.

A broker applies a new network file by ending its life in order and starting the next one, in the
same process and from its own store. To its neighbours and clients that is a short restart. Rules:

1. Only a file of the same network with a higher revision is applied. A file that is unreadable or
   invalid changes nothing; the log reports the error.
2. A broker that is no longer an edge in the new file departs first, and stays in its current
   network. It applies the file when it has drained and is asked to reload again: as a relay if the
   file says so, otherwise by ending.
3. Everything else is a restart with the new file. The state directory does not change.

Stateless.
"""

from typing import Literal

from anabranch.config.network_file import NetworkFile
from anabranch.model.errors import LocalError
from anabranch.node.node import Node
from anabranch.node.settings import NodeConfig, config_of

Step = Literal["nothing", "depart", "end"]


def next_step(node: Node, file: NetworkFile) -> NodeConfig | Step:
    """How to apply a file: restart with this configuration, or another step."""
    config = node.config
    if file.name != config.network_name:
        raise LocalError(
            f"{file.path} belongs to network {file.name!r}, but this broker belongs to"
            f" {config.network_name!r}; nothing changed"
        )
    if file.revision <= config.revision:
        node.log.info(
            "%s has revision %d, this broker has %d: nothing changed",
            file.path,
            file.revision,
            config.revision,
        )
        return "nothing"
    if node.broker.is_edge and config.name not in file.network.edges and not node.is_drained:
        return "depart"
    if config.name not in file.brokers:
        return "end"
    return config_of(file, config.name, config.state)
