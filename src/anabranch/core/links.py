"""Links to neighbours: greeting, heartbeats, and when a link counts as dead.

Both ends of a new connection say `Hello`, with their name and life, and what they know of the
other's stream (`rollback`). From then on the link is
*greeted* and the router may use it. Rules:

1. Nothing but `Hello` is sent or accepted before the greeting; a second one is an error.
2. A neighbour that greets with another name than expected, another protocol version, or an older
   life than it had before loses the link. So of two brokers with one name the younger stays. The
   reason names both lives, which are clock readings in ns, and what to do. A life that leads this
   broker's clock by more than `life_lead_s` loses the link too, and is not remembered: otherwise
   one greeting with the highest life of all would keep the neighbour out until this broker ends.
3. On a link where nothing else was sent for a while a `Ping` is sent; a link on which nothing was
   heard for longer is cut. Suspicion may be wrong: it costs a connection, never a promise.
4. How much longer is learnt (`_Patience`): from the pauses that the neighbour makes, and from links
   that were cut although it lived. It is 2.5 heartbeats at least and `dead_after_s` at most.

State: per neighbour what is below; volatile, all of it safe to lose.
"""

from anabranch.core.contract import CutLink, Effects, Send
from anabranch.core.options import Options
from anabranch.core.origin.rollback import KnownStream
from anabranch.model.errors import RemoteError
from anabranch.model.frames import PROTOCOL_VERSION, Hello, Ping
from anabranch.model.instants import utc_text

#: No silence of fewer heartbeats is suspicious.
_LEAST_HEARTBEATS = 2.5
#: How the reason begins for which a link is cut although its neighbour broke no rule.
SILENT = "nothing heard from"


def life_ahead(peer: str, life: int, now: float, lead_s: float) -> str:
    """Why a neighbour's life is too far ahead of this broker's clock; "" if it is not."""
    if life <= (now + lead_s) * 1e9:
        return ""
    return (
        f"the life of {peer!r} ({utc_text(life)}) leads this broker's clock"
        f" ({utc_text(int(now * 1e9))}) by more than {lead_s:g} s (life_lead_s); set the clock that"
        " is wrong, and start its broker again"
    )


class _Patience:
    """How long one neighbour may be silent: an estimate that outlives its connections.

    Pauses (what is shorter than a quarter of a heartbeat is none) have a mean and a mean deviation,
    both moving; a pause of a heartbeat above the mean plus four deviations is suspicious. A
    neighbour that was cut and comes back in the same life was wrongly suspected: the bound doubles,
    and shrinks again, by a part in a hundred with every pause."""

    __slots__ = ("_deviation_s", "_factor", "_greatest_s", "_heartbeat_s", "_least_s", "_mean_s")

    def __init__(self, options: Options) -> None:
        self._heartbeat_s = options.heartbeat_s
        self._greatest_s = options.dead_after_s
        self._least_s = min(_LEAST_HEARTBEATS * options.heartbeat_s, options.dead_after_s)
        # Nothing is known yet, so the benefit of the doubt is the greatest.
        self._mean_s = options.heartbeat_s
        self._deviation_s = options.dead_after_s / 4
        self._factor = 1.0

    def heard(self, pause_s: float) -> None:
        """This long nothing had been heard."""
        if pause_s * 4 < self._heartbeat_s:
            return
        off_s = pause_s - self._mean_s
        self._mean_s += off_s / 8
        self._deviation_s += (abs(off_s) - self._deviation_s) / 8
        self._factor = max(1.0, self._factor * 0.99)

    def was_wrong(self) -> None:
        """It had been suspected, and lived."""
        self._factor = min(self._factor * 2, 16.0)

    @property
    def bound_s(self) -> float:
        """A longer silence is suspicious."""
        expected_s = self._mean_s + 4 * self._deviation_s + self._heartbeat_s
        return min(max(expected_s, self._least_s) * self._factor, self._greatest_s)


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
        #: The life each neighbour last greeted with.
        self._lives: dict[str, int] = dict.fromkeys(neighbours, 0)
        self._patience = {peer: _Patience(options) for peer in neighbours}
        #: Neighbours that were cut for their silence, and in which life.
        self._suspected: dict[str, int] = {}
        self._beat_at = 0.0

    def up(self, now: float, peer: str) -> Effects:
        """A connection is there."""
        if peer not in self._lives:
            return [CutLink(peer, f"{peer!r} is no neighbour of {self._name!r}")]
        if not self._links:
            self._beat_at = now + self._options.heartbeat_s / 2
        self._links[peer] = _Link(now)
        return []

    def hello(self, peer: str, life: int, heard: KnownStream) -> Effects:
        """Greet, if the link is there, and tell what was heard of the neighbour's stream."""
        if peer not in self._links:
            return []
        told = (heard.newest, heard.seen, heard.seen_ns)
        return [Send(peer, Hello(PROTOCOL_VERSION, self._name, life, *told))]

    def all(self) -> list[str]:
        """The neighbours there is a connection to."""
        return list(self._links)

    def down(self, peer: str) -> bool:
        """It is gone; True if it was greeted."""
        link = self._links.pop(peer, None)
        return link is not None and link.greeted

    def heard(self, now: float, peer: str) -> bool:
        """Something came; False if there is no such link (a frame that outlived it)."""
        link = self._links.get(peer)
        if link is None:
            return False
        if link.greeted:
            self._patience[peer].heard(now - link.heard_at)
        link.heard_at = now
        return True

    def greet(self, now: float, peer: str, hello: Hello) -> None:
        """The neighbour said who it is."""
        link = self._links[peer]
        if hello.protocol_version != PROTOCOL_VERSION:
            raise RemoteError(
                f"{peer!r} speaks protocol {hello.protocol_version}, not {PROTOCOL_VERSION}"
            )
        if hello.broker != peer:
            raise RemoteError(f"{peer!r} calls itself {hello.broker!r}")
        if hello.life < self._lives[peer]:
            raise RemoteError(
                f"{peer!r} greets with life {hello.life}, but {self._lives[peer]} has begun: two"
                " brokers have this name, or it lost its disk and its clock went back; set its"
                " clock, restore its disk or give it a new name, and start it again"
            )
        if ahead := life_ahead(peer, hello.life, now, self._options.life_lead_s):
            raise RemoteError(ahead)
        if link.greeted:
            raise RemoteError(f"{peer!r} greets twice")
        self._lives[peer] = hello.life
        link.greeted = True
        if self._suspected.pop(peer, 0) == hello.life:
            self._patience[peer].was_wrong()

    def is_greeted(self, peer: str) -> bool:
        """Whether the router may use the link."""
        link = self._links.get(peer)
        return link is not None and link.greeted

    def patience_s(self, peer: str) -> float:
        """How long this neighbour may be silent."""
        return self._patience[peer].bound_s

    def sent(self, now: float, peer: str) -> None:
        """Something was sent."""
        self._links[peer].sent_at = now

    def time_passed(self, now: float) -> Effects:
        """Ping where it is due, and cut what is dead."""
        effects: Effects = []
        for peer, link in self._links.items():
            if now - link.heard_at >= self._patience[peer].bound_s:
                self._suspected[peer] = self._lives[peer]
                effects.append(CutLink(peer, f"{SILENT} {peer!r}"))
            elif link.greeted and now - link.sent_at >= self._options.heartbeat_s:
                effects.append(Send(peer, Ping()))
                link.sent_at = now
        self._beat_at = now + self._options.heartbeat_s / 2
        return effects

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return self._beat_at if self._links else None
