"""Options of a client, and the addresses of brokers.

The defaults of `ClientOptions` suit a program on a LAN.

An address is written as `host:port`, for example `127.0.0.1:4100`, `broker-1:4100` or `[::1]:4100`;
`tcp://host:port` and `anabranch://host:port` mean the same. Rules:

1. Every address has a port; there is no default.
2. An IPv6 address stands in brackets, because its own colons would be mistaken for the port's.
3. Connections without TLS are allowed only to this machine. Only hosts that always mean this
   machine count: `localhost`, 127.0.0.0/8 and ::1.
"""

import ipaddress
import math
import random

import msgspec

from anabranch.core.session.effects import SessionOptions
from anabranch.model.errors import LocalError

#: The number of renewals that may be lost before a pattern expires.
PATTERN_LASTS = 6
#: The maximum overhead of MessagePack per byte string.
_ITEM_BYTES = 5
_UNBOUNDED = 1 << 62


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The options of a client. Times are in seconds."""

    # -- connecting
    #: How long `connect` retries before it raises `ConnectError`.
    connect_within_s: float = 10.0
    #: The seed of the random order of addresses; None: a new order for each client.
    address_seed: int | None = None
    #: How long one address may take to connect and complete the handshake.
    dial_within_s: float = 5.0
    #: Back-off between rounds of attempts: doubles from the first to the last value, with full
    #: jitter.
    pause_first_s: float = 0.05
    pause_last_s: float = 2.0
    #: The interval of heartbeats to a silent broker.
    heartbeat_s: float = 2.0
    #: The silence after which a connection is considered dead.
    dead_after_s: float = 8.0
    #: How long `close` waits for confirmations.
    close_within_s: float = 5.0

    # -- publishing
    #: Limits on unconfirmed events and their bytes; `publish` waits while either is reached.
    unconfirmed_max: int = 4_096
    unconfirmed_bytes_max: int = 64 * 1024 * 1024
    #: The number of events in flight to the broker.
    in_flight_max: int = 1_024
    #: Resend an event that is not confirmed after this time.
    resend_after_s: float = 5.0
    #: With `order="publisher"`, see `connect`: how long a client that could publish at another
    #: broker waits for the outcome of events that it sent to the previous one; and for how long
    #: after a move its events state what they follow there.
    order_within_s: float = 30.0
    order_stated_s: float = 60.0
    #: How far a new incarnation may lead this machine's clock after an earlier process used a
    #: higher one. Brokers refuse incarnations that lead their clock by more than their own
    #: `incarnation_lead_s`.
    incarnation_lead_s: float = 86_400.0

    # -- batches
    #: The default timeout of `stage` and `commit`.
    batch_within_s: float = 60.0

    # -- subscribing
    #: The number of unacknowledged events that a subscription holds in the client.
    window: int = 4_096
    #: How long `subscribe` waits for the start at the client's own broker.
    start_within_s: float = 5.0
    #: Acknowledgements are coalesced for this long, or until a quarter of the window is used.
    ack_after_s: float = 0.05
    #: The interval of writes to the state directory; longer if the writes are slow.
    keep_every_s: float = 0.05

    # -- patterns
    #: The default timeout of `define_pattern`, `drop_pattern` and `subscribe_pattern`.
    pattern_within_s: float = 30.0
    #: Patterns that end with their client are renewed at this interval. They expire after
    #: `PATTERN_LASTS` intervals without a renewal.
    pattern_keep_s: float = 10.0

    @property
    def pattern_lasts_s(self) -> int:
        """The time after which a pattern that is not renewed expires."""
        return max(1, math.ceil(self.pattern_keep_s * PATTERN_LASTS))

    def pause_s(self, failures: int) -> float:
        """Return a random back-off after this many failed attempts.

        The jitter keeps the clients of a failed broker from reconnecting all at once.
        """
        longest = min(self.pause_last_s, self.pause_first_s * 2 ** min(failures, 20))
        return random.uniform(0.0, longest)

    def for_session(self, frame_bytes_max: int) -> SessionOptions:
        """Return the options of a session with a broker that accepts frames of this size."""
        defaults = SessionOptions()
        # Each item of a frame has a few bytes of overhead.
        usable_bytes = max(
            frame_bytes_max - _ITEM_BYTES * defaults.frame_events_max, frame_bytes_max // 2
        )
        return SessionOptions(
            frame_bytes_max=min(defaults.frame_bytes_max, usable_bytes),
            # The outbox bounds queued and unconfirmed events together.
            unconfirmed_max=_UNBOUNDED,
            unconfirmed_bytes_max=_UNBOUNDED,
            in_flight_max=self.in_flight_max,
            resend_after_s=self.resend_after_s,
            ack_after_s=self.ack_after_s,
        )


DEFAULT_OPTIONS = ClientOptions()

PORT_MAX = 65_535
_SCHEMES = ("anabranch", "tcp")


class Address(msgspec.Struct, frozen=True, order=True):
    """The host and port on which a broker listens for clients."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether the host is certainly this machine (rule 3 at the top of this module)."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Parse an address; raise `LocalError` with the remedy if it is invalid."""
    if not isinstance(text, str):
        raise LocalError(
            f"address {text!r} is of type {type(text).__name__}; give each address as an argument"
            ' of its own, such as "127.0.0.1:4100"'
        )
    scheme, has_scheme, rest = text.strip().rpartition("://")
    if has_scheme and scheme.lower() not in _SCHEMES:
        raise LocalError(
            f"address {text!r} has the unknown scheme {scheme!r}; write it as host:port,"
            " tcp://host:port or anabranch://host:port"
        )
    host, colon, port = (rest.removesuffix("/") if has_scheme else rest).rpartition(":")
    if not colon:
        raise LocalError(
            f"address {text!r} has no port; write it as host:port, for example {text.strip()}:4100"
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
