"""How a client behaves where an application may choose. The defaults suit a program on a LAN."""

import ipaddress
import math
import random

import msgspec

from anabranch.core.session.effects import SessionOptions
from anabranch.model.errors import LocalError

#: Keeps that may be lost before a pattern is dropped.
PATTERN_LASTS = 6
#: What MessagePack says of a piece of bytes, at most.
_ITEM_BYTES = 5


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One value for every choice. Times are in seconds."""

    # -- connecting
    #: How long `connect` goes on trying before it says that nobody answers.
    connect_within_s: float = 10.0
    #: How long one address may take to answer and to greet.
    dial_within_s: float = 5.0
    #: Pauses between attempts: doubling from the first to the last, each drawn from 0 to that.
    pause_first_s: float = 0.05
    pause_last_s: float = 2.0
    #: A broker that says nothing is asked this often whether it is there,
    heartbeat_s: float = 2.0
    #: and a connection on which nothing was heard for this long is given up.
    dead_after_s: float = 8.0
    #: How long `close` waits for confirmations.
    close_within_s: float = 5.0

    # -- publishing
    #: Events, and their bytes, that may wait for confirmation; publishing waits for room then.
    unconfirmed_max: int = 4_096
    unconfirmed_bytes_max: int = 64 * 1024 * 1024
    #: Events that may be on the way to the broker without being confirmed.
    in_flight_max: int = 1_024
    #: Events that were sent and not confirmed for this long are sent again.
    resend_after_s: float = 5.0
    #: How far a new incarnation may lead this machine's clock, where others were higher before.
    #: Brokers refuse what leads theirs by more than their own `incarnation_lead_s`.
    incarnation_lead_s: float = 86_400.0

    # -- batches
    #: How long `stage` and `commit` wait for their broker.
    batch_within_s: float = 60.0

    # -- subscribing
    #: Events that a subscription may hold here before the application has dealt with them.
    window: int = 4_096
    #: How long `subscribe` waits for the start at the own broker.
    start_within_s: float = 5.0
    #: Acknowledgements are gathered for this long, or until a quarter of the window has arrived.
    ack_after_s: float = 0.05
    #: The state directory is brought up to date this often, and less often where that takes long.
    keep_every_s: float = 0.05

    # -- patterns
    #: How long `define_pattern`, `drop_pattern` and `subscribe_pattern` wait for their broker.
    pattern_within_s: float = 30.0
    #: Patterns that end with their client are kept this often, and last `PATTERN_LASTS` times as
    #: long without that.
    pattern_keep_s: float = 10.0

    @property
    def pattern_lasts_s(self) -> int:
        """How long a pattern lasts that ends with its client."""
        return max(1, math.ceil(self.pattern_keep_s * PATTERN_LASTS))

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many attempts that failed before this one; drawn anew each
        time, so that not all come back at once."""
        longest = min(self.pause_last_s, self.pause_first_s * 2 ** min(failures, 20))
        return random.uniform(0.0, longest)

    def for_session(self, frame_bytes_max: int) -> SessionOptions:
        """The part of it that a session wants to know; the broker takes frames of this size."""
        own = SessionOptions()
        # What a frame holds takes some bytes each, beside its own.
        room = max(frame_bytes_max - _ITEM_BYTES * own.frame_events_max, frame_bytes_max // 2)
        return SessionOptions(
            frame_bytes_max=min(own.frame_bytes_max, room),
            unconfirmed_max=self.unconfirmed_max,
            unconfirmed_bytes_max=self.unconfirmed_bytes_max,
            in_flight_max=self.in_flight_max,
            resend_after_s=self.resend_after_s,
            ack_after_s=self.ack_after_s,
        )


DEFAULT_OPTIONS = ClientOptions()


# Addresses of brokers, as people write them: `host:port`, `[::1]:4100`, a name or a number.
#
# 1. A port is part of every address; there is no default.
# 2. An IPv6 address stands in brackets, since its own colons would be taken for the port's.
# 3. Whether a host is this machine decides if a connection may go without TLS. Only names and
#    numbers that always mean this machine count: `localhost`, 127.0.0.0/8 and ::1.


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
