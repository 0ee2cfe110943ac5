"""Free ports for a network on this machine.

The kernel would hand out a port that it also gives to outgoing connections. While a broker is down,
somebody who dials it might then be given the broker's own port, meet itself there, and keep the
broker from coming back. So ports are drawn by chance from below that range. Rules:

1. All are held at once while they are chosen, so they differ. They are let go before the answer; a
   broker that finds its port taken after all says so.
2. Where there is nothing below the range, the kernel chooses.
"""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from anabranch.config.addresses import PORT_NAMES, PortName
from anabranch.config.errors import ConfigError
from anabranch.config.network_file import NetworkFile

#: Below are ports of well-known services.
_LOWEST = 10_240
_TRIES = 200
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_LOWEST = 32_768


def with_free_ports(file: NetworkFile) -> NetworkFile:
    """The same network, with a free port wherever one is needed and none is given."""
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
    message = f"no port of {host} can be had: {what}; is it the address of another machine?"
    raise ConfigError(message, path=file.path)


def _candidates() -> list[int]:
    """Ports to try; 0 leaves it to the kernel."""
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
