"""The directory of a network that runs on this machine.

    lock               held by the process that runs the network; contains its id
    network.toml       the network with the chosen ports
    network.secret     the shared secret of its brokers, if the network file names none
    state/BROKER       the state directory of a broker
    logs/BROKER.log    the output of a broker
    control.sock       where other processes request changes (`control_channel`)

Rules

1. The default is `anabranch-NAME` beside the network file or, for the name of a shape, in the
   current directory. For a `network.toml` inside such a directory it is that directory.
2. Only one process uses the directory at a time (as with a broker's state, `store.files`), and it
   belongs to one network forever: the state of brokers is meaningless in another network.
3. A command that is given a file without a port that it needs reads `network.toml` here instead
   (`config.network_location`).

State: the directory. The operating system releases the lock when its holder dies.
"""

import os
from pathlib import Path

from anabranch.config.network_file import load
from anabranch.config.network_location import RUNNING_FILE
from anabranch.model.durable_files import take_lock
from anabranch.model.errors import LocalError

SECRET_FILE = "network.secret"
STATE = "state"
LOGS = "logs"


def hold(directory: Path, network: str) -> int:
    """Lock the directory for this network, until the returned descriptor is closed."""
    directory.mkdir(parents=True, exist_ok=True)
    known = directory / RUNNING_FILE
    # Take the lock first: a running network must be stopped in any case.
    lock = take_lock(directory, f"network {network}")
    try:
        owner = load(known).name if known.exists() else network
        if owner != network:
            raise LocalError(
                f"the directory {directory} belongs to network {owner!r}, not to {network!r};"
                " use another directory"
            )
    except BaseException:
        os.close(lock)
        raise
    return lock
