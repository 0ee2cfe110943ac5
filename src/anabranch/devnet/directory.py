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
3. A command that is given a file without a port that it needs reads `network.toml` here instead.

State: the directory. The operating system releases the lock when its holder dies.
"""

import os
from pathlib import Path

from anabranch.config.addresses import PortName
from anabranch.config.network_file import NetworkFile, load
from anabranch.model.durable_files import LOCK, take_lock
from anabranch.model.errors import LocalError

NETWORK_FILE = "network.toml"
SECRET_FILE = "network.secret"
STATE = "state"
LOGS = "logs"


def home_of(file: NetworkFile) -> Path:
    """The default directory of a network (rule 1)."""
    beside = file.path.parent
    if file.path.name == NETWORK_FILE and (beside / LOCK).exists():
        return beside
    return beside / f"anabranch-{file.name}"


def hold(directory: Path, network: str) -> int:
    """Lock the directory for this network, until the returned descriptor is closed."""
    directory.mkdir(parents=True, exist_ok=True)
    known = directory / NETWORK_FILE
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


def running_file(path: Path, port: PortName) -> NetworkFile:
    """The network of a file, with the ports that it has where it runs (rule 3)."""
    file = load(path)
    if all(name != port for _, name in file.unchosen_ports()):
        return file
    written = home_of(file) / NETWORK_FILE
    if written.exists():
        return load(written)
    if any(broker.port(port) for broker in file.brokers.values()):
        return file
    raise LocalError(
        f"{path} has no ports for {port}, and {written}, which would have them, does not exist;"
        f" start the network with `anabranch up {path}`, or, if it was started with --state DIR,"
        f" give --network DIR/{NETWORK_FILE}"
    )
