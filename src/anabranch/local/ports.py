"""Free ports on this machine.

A port from the range that the kernel gives to outgoing connections may be taken by one of those
while its owner is down for a moment. So ports are drawn from below that range: whoever has such a
port finds it free again after a restart. Between drawing and using it, a port is nobody's; if
somebody else takes it, the broker says so when it starts.

This module remembers what it has drawn in this process, so that it gives no port twice.
"""

import random
import socket
from contextlib import closing
from pathlib import Path

from anabranch.model.errors import LocalError

_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS_MAX = 1_000

_drawn: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nobody listens."""
    chance = random.SystemRandom()
    highest = _highest()
    for _ in range(_ATTEMPTS_MAX):
        port = chance.randint(_LOWEST, highest)
        if port not in _drawn and _is_free(host, port):
            _drawn.add(port)
            return port
    raise LocalError(f"no free port on {host} between {_LOWEST} and {highest}; end some listeners")


def _highest() -> int:
    """The last port below those of outgoing connections."""
    try:
        first = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first - 1 if first > 2 * _LOWEST else 65_535


def _is_free(host: str, port: int) -> bool:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
    return True
