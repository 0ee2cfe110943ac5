"""Free ports for a network on this machine.

The kernel would assign ports from the range that it also uses for outgoing connections. While a
broker is down, a process that connects to it could then be assigned the broker's own port, connect
to itself, and keep the broker from restarting. Therefore ports are drawn at random from below that
range.

Rules

1. All ports are bound at once while they are chosen, so that they differ. They are released before
   the function returns; a broker that finds its port taken reports an error.
2. If there is no port below the range, the kernel chooses.
"""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from anabranch.config.addresses import PORT_NAMES, PortName
from anabranch.config.errors import ConfigError
from anabranch.config.network_file import NetworkFile

#: Lower ports belong to well-known services.
_LOWEST = 10_240
_TRIES = 200
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_LOWEST = 32_768


def with_free_ports(file: NetworkFile) -> NetworkFile:
    """The same network, with a free port for every required port that is 0."""
    taken = {each.port(port) for each in file.brokers.values() for port in PORT_NAMES}
    chosen: dict[tuple[str, PortName], int] = {}
    with ExitStack() as held:
        for broker, port in file.unchosen_ports():
            settings = file.brokers[broker]
            host = settings.observe_host if port == "observe" else settings.listen_host
            chosen[broker, port] = _free(file, held, host, taken)
            taken.add(chosen[broker, port])
    return file.with_ports(chosen)


def _free(file: NetworkFile, held: ExitStack, host: str, taken: set[int]) -> int:
    problem = OSError("all are taken")
    for candidate in _candidates():
        try:
            number = _hold(held, host, candidate) if candidate not in taken - {0} else 0
        except OSError as error:
            problem = error
            continue
        if number and number not in taken:
            return number
    what = problem.strerror or str(problem)
    message = f"no free port on {host}: {what}; is it the address of another machine?"
    raise ConfigError(message, path=file.path)


def _candidates() -> list[int]:
    """Ports to try; 0 lets the kernel choose."""
    below = range(_LOWEST, _outgoing_lowest())
    return [*random.sample(below, min(_TRIES, len(below))), *([0] * 5)]


def _outgoing_lowest() -> int:
    try:
        return int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _OUTGOING_LOWEST


def _hold(held: ExitStack, host: str, port: int) -> int:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    with ExitStack() as own:
        holder = own.enter_context(socket.socket(family, kind, protocol))
        holder.bind(address)
        number: int = holder.getsockname()[1]
        held.push(own.pop_all())
    return number
