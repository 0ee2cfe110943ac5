"""What a player is told to do, and what it answers: one JSON document per line.

A player does one thing at a time, in the order in which it is told. Every task has one answer. This
module keeps no state.
"""

from typing import Literal

import msgspec

Quality = Literal["durable", "reliable", "best-effort"]
#: `one`: subscription number i wants symbol i. `all`: every subscription wants every event.
Pattern = Literal["one", "all"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do."""


class Join(Task, frozen=True, tag=True):
    """Connect so many clients, whose names begin like this."""

    addresses: tuple[str, ...]
    name: str
    clients: int = 1


class Subscribe(Task, frozen=True, tag=True):
    """Make so many subscriptions, spread over the clients, and read them from now on."""

    count: int
    pattern: Pattern
    quality: Quality
    #: They must have started on this stream,
    stream: str
    #: all of them within this time.
    bound_s: float = 60.0


class Publish(Task, frozen=True, tag=True):
    """Publish events with the first client, and wait until all are confirmed."""

    count: int
    #: Events per second; 0 for as many as the network takes.
    rate: float = 0.0
    #: Symbols are taken in turn from this many.
    symbols: int = 1
    transient: bool = False


class Await(Task, frozen=True, tag=True):
    """Wait until so many events have come, over all subscriptions, since the beginning."""

    events: int
    bound_s: float = 60.0


class TakeLatencies(Task, frozen=True, tag=True):
    """Tell the latency of every event that came since this was asked last."""


class TakeSilence(Task, frozen=True, tag=True):
    """Tell the longest time without an event since this was asked last."""


class Probe(Task, frozen=True, tag=True):
    """Make subscriptions one after the other, each until its first event, and end them."""

    count: int
    #: Whether what is there already covers them.
    covered: bool
    stream: str


class Fetch(Task, frozen=True, tag=True):
    """Read the stream of the broker there in bulk, up to this tick, and count the events."""

    address: str
    last: int
    #: "": all of them.
    filter: str = ""


AnyTask = Join | Subscribe | Publish | Await | TakeLatencies | TakeSilence | Probe | Fetch


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is done."""

    seconds: float
    #: Events that have come so far, over all subscriptions.
    events: int


class Figures(msgspec.Struct, frozen=True, tag=True):
    """What was asked for, in seconds."""

    values: tuple[float, ...]


class Starts(msgspec.Struct, frozen=True, tag=True):
    """From asking for a subscription until it is told where it starts, and until its first
    event."""

    told_s: tuple[float, ...]
    first_event_s: tuple[float, ...]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot be done."""

    reason: str


Answer = Done | Figures | Starts | Failed

task_decoder: msgspec.json.Decoder[AnyTask] = msgspec.json.Decoder(AnyTask)
answer_decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
encode = msgspec.json.Encoder().encode
