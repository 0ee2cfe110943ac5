"""What a new network file means for a broker that runs.

A broker takes another network by ending its life in order and beginning the next one, in the same
process, from its own store: for its neighbours and clients that is a short restart. Rules:

1. Only a file of the same network with a higher revision counts. A file that cannot be read or used
   changes nothing; the log says what is wrong with it.
2. A broker that is no edge any more in the new file departs first, and stays in the network that it
   has. It takes the file when it is drained and asked again: as a relay if it is one there,
   otherwise by ending.
3. Everything else is a restart with the new file. The state directory stays where it is.

This module keeps no state.
"""

from typing import Literal

from anabranch.config.network_file import NetworkFile
from anabranch.model.errors import LocalError
from anabranch.node.node import Node
from anabranch.node.settings import NodeConfig, config_of

Step = Literal["nothing", "depart", "end"]


def next_step(node: Node, file: NetworkFile) -> NodeConfig | Step:
    """What to do about a file: begin anew with this configuration, or something else."""
    config = node.config
    if file.name != config.network_name:
        raise LocalError(
            f"{file.path} is of the network {file.name!r}, and this broker is of"
            f" {config.network_name!r}; nothing is changed"
        )
    if file.revision <= config.revision:
        node.log.info(
            "%s has revision %d and this broker %d: nothing is changed",
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
