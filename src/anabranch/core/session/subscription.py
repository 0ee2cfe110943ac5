"""One subscription as its client knows it: how far the application got, and how far the broker.

Four positions per stream, each "everything up to this tick":

- *received*: the application was given it. What comes again at or below is dropped, always: after
  a reconnect, at another broker, from a broker that repeats itself.
- *acked*: the application has dealt with it. This is what a returning client presents, so that
  whatever the application had in hand when it died comes again. acked ≤ received.
- *heard*: it came from the broker during the present attachment.
- *told*: the broker knows that it is dealt with. told ≤ heard, since a broker need not believe an
  acknowledgement of what it has not sent.

A broker sends the ticks of one stream in order; `Deliver.through` and withheld ranges move the
positions like data. With automatic acknowledgement acked is received: being given to the
application counts as dealt with.

The phases:

    apart    not known to the broker of this session, as far as we know: no connection, or not yet
    asked    `Subscribe` is on its way
    stands   the broker said so
    ending   `Unsubscribe` is on its way
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from anabranch.core.session.effects import (
    DeliverToApplication,
    SessionEffects,
    Standing,
    TellStart,
    TellWithheld,
)
from anabranch.model.client_frames import (
    Matches,
    Quality,
    StartsAt,
    Subscribe,
    Subscribed,
    Withheld,
)
from anabranch.model.errors import LocalError, RemoteError

Phase = Literal["apart", "asked", "stands", "ending"]
#: There is no such position.
_NONE = -1


class _Reach:
    """How far one stream has got: the four positions at the top of this module."""

    __slots__ = ("acked", "closed", "heard", "received", "told")

    def __init__(self, received: int = _NONE, acked: int = _NONE) -> None:
        self.received = received
        self.acked = acked
        self.heard = 0
        self.told = 0
        #: Where it ended for an application that wanted the end, at a hole.
        self.closed = _NONE

    @property
    def owes(self) -> bool:
        """Whether there is something that the broker should know and does not."""
        return self.acked > self.told < self.heard


class Subscription:
    """One subscription. See the top of this module."""

    __slots__ = (
        "_reaches",
        "ack_at",
        "name",
        "number",
        "phase",
        "quality",
        "request",
        "standing",
        "start",
        "unacked_events",
        "wants_end",
    )

    def __init__(self, standing: Standing, quality: Quality) -> None:
        self.name = standing.name
        self.quality = quality
        #: What was asked for; what changes of it is in the fields below.
        self.standing = standing
        self.start = standing.start
        self.number = standing.number
        self.phase: Phase = "apart"
        #: The application unsubscribed, and the broker has to be told when that is possible.
        self.wants_end = False
        #: The last request about it.
        self.request = 0
        received = {**standing.acked, **standing.received}
        self._reaches = {
            stream: _Reach(tick, standing.acked.get(stream, _NONE))
            for stream, tick in received.items()
        }
        #: Events heard since the last acknowledgement.
        self.unacked_events = 0
        #: When to acknowledge, if there is something.
        self.ack_at = 0.0

    def as_standing(self) -> Standing:
        """All that is needed to come back to it."""
        was = self.standing
        return Standing(
            name=was.name,
            filter=was.filter,
            number=self.number,
            acked=self._acked(),
            received=self.received(),
            start=self.start,
            start_time_ns=was.start_time_ns,
            start_ticks=was.start_ticks,
            window=was.window,
            manual_ack=was.manual_ack,
        )

    def received(self, streams: Iterable[str] | None = None) -> dict[str, int]:
        """Stream → the application was given everything up to this tick; of all streams, or of
        those of these that it has."""
        every = self._reaches
        chosen = every if streams is None else [each for each in streams if each in every]
        return {each: tick for each in chosen if (tick := every[each].received) != _NONE}

    def _acked(self) -> dict[str, int]:
        every = self._reaches.items()
        return {stream: reach.acked for stream, reach in every if reach.acked != _NONE}

    def closed(self) -> dict[str, int]:
        """Stream → where it ended for an application that wanted the end, at a hole."""
        every = self._reaches.items()
        return {stream: reach.closed for stream, reach in every if reach.closed != _NONE}

    def _reach(self, stream: str) -> _Reach:
        reach = self._reaches.get(stream)
        if reach is None:
            reach = self._reaches[stream] = _Reach()
        return reach

    @property
    def was_asked_for(self) -> bool:
        """Whether some broker may know it from an earlier connection."""
        return self.number > 0 or self.start == "resume"

    @property
    def has_stood(self) -> bool:
        """Whether the broker promised or gave anything, on the present connection or earlier."""
        return self.phase in {"stands", "ending"} or bool(self.received())

    # -- attaching ------------------------------------------------------------------------------

    def attach(self, request: int) -> Subscribe:
        """What to ask the broker for, now that there is a connection."""
        was = self.standing
        forgot = self.start == "resume" and self.number == 0
        if self.quality == "durable" and not forgot:
            self.number += 1
        ticks = dict(was.start_ticks)
        if self.start == "resume":
            ticks.update(self._acked())
        self.phase = "asked"
        for reach in self._reaches.values():
            reach.heard = reach.told = 0
        for stream, tick in ticks.items():
            reach = self._reach(stream)
            reach.heard = reach.told = tick
        self.unacked_events = 0
        return Subscribe(
            request,
            self.name,
            was.filter,
            self.quality,
            self.start,
            was.start_time_ns if self.start == "time" else 0,
            ticks if self.start in {"tick", "resume"} else {},
            self.number,
            was.window,
        )

    def stands(self, frame: Subscribed) -> SessionEffects:
        """The broker has it, from these ticks on."""
        self.phase = "stands"
        self.number = max(self.number, frame.number)
        if self.quality == "durable":
            self.start = "resume"
        effects: SessionEffects = []
        for stream, tick in frame.ticks.items():
            reach = self._reach(stream)
            if reach.received == _NONE:
                effects.append(self._starts(stream, tick + 1))
            reach.heard = reach.told = tick
        return effects

    def detach(self) -> None:
        """The connection is gone."""
        if self.quality == "best-effort" and self.has_stood:
            self.start = "now"
        self.phase = "apart"

    # -- ticks ----------------------------------------------------------------------------------

    def starts_at(self, frame: StartsAt) -> SessionEffects:
        """The broker says from where on it delivers."""
        stream, tick = frame.stream, frame.tick
        known = self._reach(stream).received
        if known != _NONE:
            if tick <= known + 1:
                return []
            if self.quality != "best-effort":
                raise RemoteError(
                    f"{self.name!r} has {stream!r} up to tick {known},"
                    f" but the broker goes on at {tick} without a word about what is between"
                )
        return [self._starts(stream, tick)]

    def _starts(self, stream: str, tick: int) -> TellStart:
        reach = self._reach(stream)
        reach.received = reach.acked = reach.heard = reach.told = tick - 1
        return TellStart(self.name, stream, tick)

    def deliver(self, stream: str, matches: Matches, effects: SessionEffects) -> bool:
        """Matches that can be, and how far that goes; returns whether there is something to
        acknowledge."""
        name, reach = self.name, self._reach(stream)
        known = reach.received
        if reach.closed == _NONE:
            effects += [
                DeliverToApplication(name, stream, datum.tick, datum.time_ns, datum.body)
                for datum in matches.data
                if datum.tick > known
            ]
        self.unacked_events += len(matches.data)
        return self._moved(reach, matches.through)

    def withhold(self, frame: Withheld, effects: SessionEffects) -> bool:
        """Ticks that will not come; returns whether there is something to acknowledge. What the
        application has of them already stays its own."""
        stream, reach = frame.stream, self._reach(frame.stream)
        for hole in frame.holes:
            if hole.last < hole.first:
                raise RemoteError(f"ticks {hole.first} to {hole.last} of {stream!r} are no range")
            first = max(hole.first, reach.received + 1)
            if first <= hole.last and self.wants_end:
                # The end had been asked for, perhaps even been granted: it is here, then.
                if reach.closed == _NONE:
                    reach.closed = max(reach.received, 0)
            elif first <= hole.last:
                effects.append(TellWithheld(self.name, stream, first, hole.last, hole.reason))
            self._moved(reach, hole.last)
        return reach.owes

    def _moved(self, reach: _Reach, tick: int) -> bool:
        reach.heard = max(reach.heard, tick)
        if tick > reach.received and reach.closed == _NONE:
            reach.received = tick
        if not self.standing.manual_ack:
            reach.acked = reach.received
        return reach.owes

    # -- acknowledging --------------------------------------------------------------------------

    def check_ack(self, ticks: Mapping[str, int] | None) -> None:
        """`LocalError` if the application cannot have dealt with so much."""
        for stream, tick in (ticks or {}).items():
            if tick > self.received([stream]).get(stream, 0):
                raise LocalError(
                    f"tick {tick} of {stream!r} was never delivered to {self.name!r};"
                    " acknowledge what was"
                )

    def ack(self, ticks: Mapping[str, int] | None) -> dict[str, int]:
        """The application has dealt with everything up to these ticks; None: all it was given.
        Returns what is news of that to the broker. `check_ack` comes before."""
        given = self.received() if ticks is None else ticks
        for stream, tick in given.items():
            reach = self._reach(stream)
            reach.acked = max(reach.acked, tick)
        return self.owed(given)

    def owed(self, streams: Iterable[str] = ()) -> dict[str, int]:
        """What the broker should know and does not, of these streams or of all. Where it ends, it
        need not know any more."""
        news: dict[str, int] = {}
        if self.phase == "stands":
            for stream in streams or self._reaches:
                reach = self._reaches[stream]
                if reach.owes:
                    news[stream] = reach.told = min(reach.heard, reach.acked)
        self.unacked_events = 0
        return news


def check_matches(stream: str, matches: Matches) -> None:
    """`RemoteError` for ticks that cannot be."""
    last = 0
    for datum in matches.data:
        if datum.tick <= last:
            raise RemoteError(f"tick {datum.tick} of {stream!r} was sent after tick {last}")
        last = datum.tick
    if last > matches.through:
        raise RemoteError(f"tick {last} of {stream!r} was sent, but only {matches.through} said")
