"""Addresses of brokers, as people write them: `host:port`, `[::1]:4100`, a name or a number.

1. A port is part of every address; there is no default.
2. An IPv6 address stands in brackets, since its own colons would be taken for the port's.
3. Whether a host is this machine decides if a connection may go without TLS. Only names and
   numbers that always mean this machine count: `localhost`, 127.0.0.0/8 and ::1.
"""

import ipaddress

import msgspec

from anabranch.model.errors import LocalError

PORT_MAX = 65_535


class Address(msgspec.Struct, frozen=True, order=True):
    """Where a broker listens for clients."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether this is certainly the machine we are on."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """The address that a text says, or a `LocalError` that says what is wrong with it."""
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        raise LocalError(
            f"address {text!r} has no port; write it as host:port, for example {text}:4100"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise LocalError(f"address {text!r} is ambiguous; write an IPv6 address as [{host}]:{port}")
    if not host or any(letter.isspace() for letter in host):
        raise LocalError(f"address {text!r} has no host; write it as host:port")
    if not (port.isascii() and port.isdecimal()) or not 0 < int(port) <= PORT_MAX:
        raise LocalError(f"address {text!r} has no port between 1 and {PORT_MAX} after its colon")
    return Address(host, int(port))
