"""What the demonstration shows: one moment of it as tables or as a line, and the end.

A `Moment` is a value; the live tables and the plain lines are drawn from it. This module keeps no
state.
"""

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from anabranch.cli.demo_pipeline import PipelineReport
from anabranch.local.drill import Trial
from anabranch.local.verdict import RunVerdict


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """One subscriber."""

    name: str
    filter: str
    quality: str
    #: The broker it is at.
    home: str
    received: int
    outstanding: int
    lag_ms: float
    #: The longest time without an event while one was on its way.
    silent_s: float


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The demonstration at one moment."""

    seconds: float
    phase: str
    published: int
    confirmed: int
    #: Since the moment before.
    published_per_s: float
    delivered_per_s: float
    #: Broker → its state.
    brokers: dict[str, str]
    readers: tuple[Reader, ...]

    @property
    def delivered(self) -> int:
        """By all subscribers."""
        return sum(reader.received for reader in self.readers)

    @property
    def down(self) -> tuple[str, ...]:
        """The brokers that do not serve."""
        return tuple(name for name, state in self.brokers.items() if state != "ready")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done to the network."""

    seconds: float
    text: str


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole demonstration."""

    brokers: int
    seconds: float
    events: tuple[Event, ...]
    last: Moment
    #: What did not arrive in time, for people.
    missing: str
    verdict: RunVerdict
    #: None: it was left out.
    pipeline: PipelineReport | None = None


def moment_of(drill: Trial, seconds: float, phase: str, before: Moment | None) -> Moment:
    """How things stand now."""
    readers = tuple(
        Reader(
            name=each.name,
            filter=str(each.filter),
            quality="durable" if each.is_durable else "reliable",
            home=each.client.broker if each.client.is_connected else "…",
            received=each.received,
            outstanding=max(0, each.expected - each.received),
            lag_ms=1_000 * each.lag_s,
            silent_s=each.silent_s,
        )
        for each in drill.listeners.values()
    )
    published = sum(each.published for each in drill.speakers.values())
    passed_s = max(seconds - before.seconds, 1e-9) if before else max(seconds, 1e-9)
    delivered = sum(reader.received for reader in readers)
    return Moment(
        seconds=seconds,
        phase=phase,
        published=published,
        confirmed=sum(each.confirmed for each in drill.speakers.values()),
        published_per_s=(published - (before.published if before else 0)) / passed_s,
        delivered_per_s=(delivered - (before.delivered if before else 0)) / passed_s,
        brokers={name: drill.network.state(name) for name in drill.network.brokers},
        readers=readers,
    )


def line(moment: Moment) -> str:
    """A moment in one line."""
    waiting = sum(reader.outstanding for reader in moment.readers)
    return (
        f"{moment.seconds:5.1f} s  published {moment.published:,} ({moment.published_per_s:,.0f}/s)"
        f"  confirmed {moment.confirmed:,}  delivered {moment.delivered:,}"
        f" ({moment.delivered_per_s:,.0f}/s)  on the way {waiting:,}"
        f"  down: {', '.join(moment.down) or 'none'}"
    )


def tables(moment: Moment) -> RenderableType:
    """A moment for a terminal."""
    return Group(
        f"{moment.phase}",
        line(moment),
        " ".join(
            f"{name}{'' if state == 'ready' else f'[{state}]'}"
            for name, state in moment.brokers.items()
        ),
        _readers(moment),
    )


def _readers(moment: Moment) -> Table:
    table = Table("subscriber", "filter", "quality", "at", "received", "on the way", "lag ms")
    for column in table.columns[4:]:
        column.justify = "right"
    for reader in moment.readers:
        numbers = (f"{reader.received:,}", f"{reader.outstanding:,}", f"{reader.lag_ms:.0f}")
        table.add_row(reader.name, reader.filter, reader.quality, reader.home, *numbers)
    return table
