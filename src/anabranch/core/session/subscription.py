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

from collections.abc import Mapping
from typing import Literal

from anabranch.core.session.effects import (
    DeliverToApplication,
    SessionEffects,
    Standing,
    TellStart,
    TellWithheld,
)
from anabranch.model.client_frames import (
    Ack,
    Deliver,
    Quality,
    StartsAt,
    Subscribe,
    Subscribed,
    Withheld,
)
from anabranch.model.errors import LocalError, RemoteError

Phase = Literal["apart", "asked", "stands", "ending"]


class Subscription:
    """One subscription. See the top of this module."""

    __slots__ = (
        "ack_at",
        "acked",
        "closed",
        "heard",
        "name",
        "number",
        "phase",
        "quality",
        "received",
        "request",
        "standing",
        "start",
        "told",
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
        self.acked = dict(standing.acked)
        self.received = {**standing.acked, **standing.received}
        self.heard: dict[str, int] = {}
        self.told: dict[str, int] = {}
        #: Stream → where it ended for an application that wanted the end, at a hole.
        self.closed: dict[str, int] = {}
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
            acked=dict(self.acked),
            received=dict(self.received),
            start=self.start,
            start_time_ns=was.start_time_ns,
            start_ticks=was.start_ticks,
            window=was.window,
            manual_ack=was.manual_ack,
        )

    @property
    def was_asked_for(self) -> bool:
        """Whether some broker may know it from an earlier connection."""
        return self.number > 0 or self.start == "resume"

    @property
    def has_stood(self) -> bool:
        """Whether the broker promised or gave anything, on the present connection or earlier."""
        return self.phase in {"stands", "ending"} or bool(self.received)

    # -- attaching ------------------------------------------------------------------------------

    def attach(self, request: int) -> Subscribe:
        """What to ask the broker for, now that there is a connection."""
        was = self.standing
        forgot = self.start == "resume" and self.number == 0
        if self.quality == "durable" and not forgot:
            self.number += 1
        ticks = dict(was.start_ticks)
        if self.start == "resume":
            ticks.update(self.acked)
        self.phase = "asked"
        self.heard = dict(ticks)
        self.told = dict(ticks)
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
            if stream not in self.received:
                effects.append(self._starts(stream, tick + 1))
            self.heard[stream] = self.told[stream] = tick
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
        known = self.received.get(stream)
        if known is not None:
            if tick <= known + 1:
                return []
            if self.quality != "best-effort":
                raise RemoteError(
                    f"{self.name!r} has {stream!r} up to tick {known},"
                    f" but the broker goes on at {tick} without a word about what is between"
                )
        return [self._starts(stream, tick)]

    def _starts(self, stream: str, tick: int) -> TellStart:
        self.received[stream] = self.acked[stream] = tick - 1
        self.heard[stream] = self.told[stream] = tick - 1
        return TellStart(self.name, stream, tick)

    def deliver(self, frame: Deliver, drop_repeated: bool = True) -> SessionEffects:
        """Matches, and how far that goes."""
        name, stream = self.name, frame.stream
        last = 0
        for datum in frame.data:
            if datum.tick <= last:
                raise RemoteError(f"tick {datum.tick} of {stream!r} was sent after tick {last}")
            last = datum.tick
        if last > frame.through:
            raise RemoteError(f"tick {last} of {stream!r} was sent, but only {frame.through} said")
        known = self.received.get(stream, 0)
        effects: SessionEffects = [
            DeliverToApplication(name, stream, datum.tick, datum.time_ns, datum.body)
            for datum in frame.data
            if (datum.tick > known or not drop_repeated) and stream not in self.closed
        ]
        self.unacked_events += len(frame.data)
        self._moved(stream, frame.through)
        return effects

    def withhold(self, frame: Withheld) -> SessionEffects:
        """Ticks that will not come. What the application has of them already stays its own."""
        effects: SessionEffects = []
        stream = frame.stream
        for hole in frame.holes:
            if hole.last < hole.first:
                raise RemoteError(f"ticks {hole.first} to {hole.last} of {stream!r} are no range")
            first = max(hole.first, self.received.get(stream, 0) + 1)
            if first <= hole.last and self.wants_end:
                # The end had been asked for, perhaps even been granted: it is here, then.
                self.closed.setdefault(stream, self.received.get(stream, 0))
            elif first <= hole.last:
                effects.append(TellWithheld(self.name, stream, first, hole.last, hole.reason))
            self._moved(stream, hole.last)
        return effects

    def _moved(self, stream: str, tick: int) -> None:
        if tick > self.heard.get(stream, 0):
            self.heard[stream] = tick
        if tick > self.received.get(stream, 0) and stream not in self.closed:
            self.received[stream] = tick
        if not self.standing.manual_ack:
            self.acked[stream] = self.received.get(stream, 0)

    # -- acknowledging --------------------------------------------------------------------------

    def ack(self, ticks: Mapping[str, int] | None) -> None:
        """The application has dealt with everything up to these ticks; None: all it was given."""
        given = self.received if ticks is None else ticks
        for stream, tick in given.items():
            if tick > self.received.get(stream, 0):
                raise LocalError(
                    f"tick {tick} of {stream!r} was never delivered to {self.name!r};"
                    " acknowledge what was"
                )
        for stream, tick in given.items():
            self.acked[stream] = max(tick, self.acked.get(stream, 0))

    def owed_ack(self) -> Ack | None:
        """What the broker should know and does not. Where it ends, it need not know any more."""
        if self.phase != "stands":
            return None
        news: dict[str, int] = {}
        for stream, heard in self.heard.items():
            tick = min(heard, self.acked.get(stream, 0))
            if tick > self.told.get(stream, 0):
                news[stream] = tick
        if not news:
            return None
        self.told.update(news)
        return Ack(self.name, news)
