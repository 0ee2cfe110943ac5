"""Links to neighbours: handshake, heartbeats and failure detection.

Both ends of a new connection send `Hello` with their name, their life and their knowledge of the
other's stream (`rollback`). After that the link is *greeted*, and the router may use it.

Rules

1. Handshake. Only `Hello` is sent or accepted before the handshake; a second `Hello` is an error.
2. Identity. A neighbour loses its link if it greets with an unexpected name, another protocol
   version, or an older life than before; of two brokers with the same name, the younger one stays.
   The reason names both lives, which are clock readings in ns, and the remedy. A life that is more
   than `life_lead_s` ahead of this broker's clock also costs the link and is not recorded;
   otherwise one greeting with the highest possible life would lock the neighbour out until this
   broker restarts.
3. Heartbeats. A link that was idle for a while sends a `Ping`. A link that received nothing for
   longer than its bound is cut. A wrong suspicion costs a connection, never a guarantee.
4. Adaptive bound. The bound is learned (`_SilenceBound`) from the neighbour's pauses and from links
   that were cut although the neighbour was alive. It is at least 2.5 heartbeats and at most
   `dead_after_s`.

State: the fields below, per neighbour; volatile and safe to lose.
"""

from anabranch.core.contract import CutLink, Effects, Send
from anabranch.core.options import Options
from anabranch.core.origin.rollback import KnownStream
from anabranch.model.errors import RemoteError
from anabranch.model.event import utc_text
from anabranch.model.frames import PROTOCOL_VERSION, Hello, Ping

#: Silence of fewer heartbeats than this is never suspicious.
_SILENT_HEARTBEATS_MIN = 2.5
#: Prefix of the reason when a link is cut for silence rather than for a protocol error.
SILENT = "nothing heard from"


def life_ahead(peer: str, life: int, now: float, lead_s: float) -> str:
    """Why a neighbour's life is too far ahead of this broker's clock; "" if it is not."""
    if life <= (now + lead_s) * 1e9:
        return ""
    return (
        f"the life of {peer!r} ({utc_text(life)}) leads this broker's clock"
        f" ({utc_text(int(now * 1e9))}) by more than {lead_s:g} s (life_lead_s); correct the wrong"
        " clock and restart its broker"
    )


class _SilenceBound:
    """How long one neighbour may be silent: an estimate that survives reconnects.

    It keeps a moving mean and a moving mean deviation of the pauses; pauses shorter than a quarter
    of a heartbeat are ignored. A pause that exceeds the mean plus four deviations by a heartbeat is
    suspicious. A neighbour that is cut and reconnects in the same life was wrongly suspected: the
    bound doubles, and then shrinks by one percent with every pause."""

    __slots__ = (
        "_bound_max_s",
        "_bound_min_s",
        "_deviation_s",
        "_factor",
        "_heartbeat_s",
        "_mean_s",
    )

    def __init__(self, options: Options) -> None:
        self._heartbeat_s = options.heartbeat_s
        self._bound_max_s = options.dead_after_s
        self._bound_min_s = min(_SILENT_HEARTBEATS_MIN * options.heartbeat_s, options.dead_after_s)
        # Nothing is measured yet, so the neighbour gets the maximum.
        self._mean_s = options.heartbeat_s
        self._deviation_s = options.dead_after_s / 4
        self._factor = 1.0

    def record_pause(self, pause_s: float) -> None:
        """Record that the neighbour sent something after this pause."""
        if pause_s * 4 < self._heartbeat_s:
            return
        off_s = pause_s - self._mean_s
        self._mean_s += off_s / 8
        self._deviation_s += (abs(off_s) - self._deviation_s) / 8
        self._factor = max(1.0, self._factor * 0.99)

    def record_false_suspicion(self) -> None:
        """Record that the neighbour was suspected but alive."""
        self._factor = min(self._factor * 2, 16.0)

    @property
    def bound_s(self) -> float:
        """The longest silence that is not suspicious."""
        expected_s = self._mean_s + 4 * self._deviation_s + self._heartbeat_s
        return min(max(expected_s, self._bound_min_s) * self._factor, self._bound_max_s)


class _Link:
    """A connection to one neighbour."""

    __slots__ = ("greeted", "heard_at", "sent_at")

    def __init__(self, now: float) -> None:
        self.greeted = False
        self.heard_at = now
        self.sent_at = now


class Links:
    """The links of one broker."""

    def __init__(self, name: str, neighbours: tuple[str, ...], options: Options) -> None:
        self._name = name
        self._options = options
        self._links: dict[str, _Link] = {}
        #: The life of each neighbour's last greeting.
        self._lives: dict[str, int] = dict.fromkeys(neighbours, 0)
        self._silence_bounds = {peer: _SilenceBound(options) for peer in neighbours}
        #: Neighbours whose link was cut for silence → their life.
        self._suspected: dict[str, int] = {}
        self._beat_at = 0.0

    def link_up(self, now: float, peer: str) -> Effects:
        if peer not in self._lives:
            return [CutLink(peer, f"{peer!r} is not a neighbour of {self._name!r}")]
        if not self._links:
            self._beat_at = now + self._options.heartbeat_s / 2
        self._links[peer] = _Link(now)
        return []

    def hello(self, peer: str, life: int, heard: KnownStream) -> Effects:
        """Greet a connected neighbour, with this broker's knowledge of its stream."""
        if peer not in self._links:
            return []
        known = (heard.newest, heard.seen, heard.seen_ns)
        return [Send(peer, Hello(PROTOCOL_VERSION, self._name, life, *known))]

    def connected_peers(self) -> list[str]:
        return list(self._links)

    def link_down(self, peer: str) -> bool:
        """Remove a link; True if it was greeted."""
        link = self._links.pop(peer, None)
        return link is not None and link.greeted

    def heard(self, now: float, peer: str) -> bool:
        """Record that a frame arrived; False if its link no longer exists."""
        link = self._links.get(peer)
        if link is None:
            return False
        if link.greeted:
            self._silence_bounds[peer].record_pause(now - link.heard_at)
        link.heard_at = now
        return True

    def greet(self, now: float, peer: str, hello: Hello) -> None:
        """Check a neighbour's greeting; `RemoteError` if it is unacceptable."""
        link = self._links[peer]
        if hello.protocol_version != PROTOCOL_VERSION:
            raise RemoteError(
                f"{peer!r} uses protocol {hello.protocol_version}, not {PROTOCOL_VERSION}"
            )
        if hello.broker != peer:
            raise RemoteError(f"{peer!r} calls itself {hello.broker!r}")
        if hello.life < self._lives[peer]:
            raise RemoteError(
                f"{peer!r} greets with life {hello.life}, older than {self._lives[peer]}: two"
                " brokers have this name, or it lost its disk and its clock went back; correct its"
                " clock, restore its disk or give it a new name, and restart it"
            )
        if ahead := life_ahead(peer, hello.life, now, self._options.life_lead_s):
            raise RemoteError(ahead)
        if link.greeted:
            raise RemoteError(f"{peer!r} greeted twice")
        self._lives[peer] = hello.life
        link.greeted = True
        if self._suspected.pop(peer, 0) == hello.life:
            self._silence_bounds[peer].record_false_suspicion()

    def is_neighbour(self, broker: str) -> bool:
        return broker in self._lives

    def is_greeted(self, peer: str) -> bool:
        """Whether the router may use the link."""
        link = self._links.get(peer)
        return link is not None and link.greeted

    def silence_bound_s(self, peer: str) -> float:
        """How long this neighbour may be silent."""
        return self._silence_bounds[peer].bound_s

    def sent(self, now: float, peer: str) -> None:
        self._links[peer].sent_at = now

    def time_passed(self, now: float) -> Effects:
        """Send due pings, and cut links that were silent for too long."""
        effects: Effects = []
        for peer, link in self._links.items():
            if now - link.heard_at >= self._silence_bounds[peer].bound_s:
                self._suspected[peer] = self._lives[peer]
                effects.append(CutLink(peer, f"{SILENT} {peer!r}"))
            elif link.greeted and now - link.sent_at >= self._options.heartbeat_s:
                effects.append(Send(peer, Ping()))
                link.sent_at = now
        self._beat_at = now + self._options.heartbeat_s / 2
        return effects

    def next_deadline(self) -> float | None:
        return self._beat_at if self._links else None
