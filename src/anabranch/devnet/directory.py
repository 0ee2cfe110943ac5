"""The directory of a network on this machine: where it is, whose it is, and what it tells others.

    lock               held by the process that runs the network; says which one that is
    network.toml       the network with the ports that were chosen
    network.secret     what its brokers prove to each other, if the network names nothing else
    state/BROKER       what a broker keeps
    logs/BROKER.log    what it said
    control.sock       where other processes ask it for changes (`control_channel`)

Rules:

1. Unless another one is given, it is `anabranch-NAME` beside the network file; for the name of a
   shape, in the current directory. A `network.toml` that was written by rule 3 is at home already.
2. One process at a time (as with a broker's state, `store.files`), and one network for good:
   what brokers of another one keep there would mean something else.
3. Whoever is given a file that leaves a port free, and needs it, takes the file that is here.

State kept: the directory. The lock is given back by the system when its holder dies.
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
    """Where everything of this network is kept, if nobody says otherwise."""
    beside = file.path.parent
    if file.path.name == NETWORK_FILE and (beside / LOCK).exists():
        return beside
    return beside / f"anabranch-{file.name}"


def hold(directory: Path, network: str) -> int:
    """Have the directory, for this network, until the descriptor that is returned is closed."""
    directory.mkdir(parents=True, exist_ok=True)
    known = directory / NETWORK_FILE
    # Whoever runs it is told first, because that has to be stopped in any case.
    lock = take_lock(directory, f"network {network}")
    try:
        owner = load(known).name if known.exists() else network
        if owner != network:
            raise LocalError(
                f"the directory {directory} belongs to network {owner!r}, not to {network!r};"
                " give this network a directory of its own"
            )
    except BaseException:
        os.close(lock)
        raise
    return lock


def running_file(path: Path, port: PortName) -> NetworkFile:
    """The network of a file, with the ports of this kind that it has where it runs (rule 3)."""
    file = load(path)
    if all(name != port for _, name in file.unchosen_ports()):
        return file
    written = home_of(file) / NETWORK_FILE
    if written.exists():
        return load(written)
    if any(broker.port(port) for broker in file.brokers.values()):
        return file
    raise LocalError(
        f"{path} leaves the ports for {port} free, and {written} is not there, which would tell"
        f" them; start the network with `anabranch up {path}`, or, if it was started with --state"
        f" DIR, give --network DIR/{NETWORK_FILE}"
    )
