"""`anabranch bench match`: measure matching of events against many subscriptions.

The subscriptions select a symbol and a price range, as subscribers of stock quotes do. The command
loads them into one index, checks some results, and matches the events in one batch and one by one.

Rules

1. Times are CPU time of one core. The fastest of several passes counts, because noise only adds.
2. The seed determines filters and events.
3. The results for a few events are compared with the filters evaluated one at a time. If they
   differ, the exit code is 1.
"""

import random
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, figures_table, steps_on_stderr
from anabranch.matching.index import MatchIndex
from anabranch.model.errors import AnabranchError
from anabranch.model.filter import Filter

Quote = dict[str, str | float]

_SYMBOLS = 1_000
_PRICE_MAX = 1_000
_PASSES = 5
_LOADED_AT_A_TIME = 8_192
#: Events, and subscriptions for each of them, whose results are checked.
_CHECKED_EVENTS = 10
_CHECKED_FILTERS = 2_000


class MatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements."""

    subscriptions: int
    events: int
    engine: str
    matches_per_event: float
    batch_us_per_event: float
    single_us_per_event: float
    load_s: float
    bytes_per_subscription: float


class WrongAnswerError(AnabranchError):
    """The index and the filters disagree."""


def match(
    *,
    subscriptions: Annotated[int, typer.Option(min=1, help="Number of subscriptions.")] = 100_000,
    events: Annotated[int, typer.Option(min=1, help="Number of events.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of filters and events.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure matching on this machine.

    anabranch bench match --subscriptions 1000000
    """
    try:
        with steps_on_stderr() as steps:
            report = measure(subscriptions, events, random.Random(seed), steps)
    except WrongAnswerError as error:
        typer.echo(f"anabranch: error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(report)
        return
    title = f"{subscriptions:,} subscriptions, {events:,} events, engine {report.engine}"
    rows = (
        ("match, events in a batch", f"{report.batch_us_per_event:,.1f} µs per event"),
        ("match, events one by one", f"{report.single_us_per_event:,.1f} µs per event"),
        ("matches", f"{report.matches_per_event:,.1f} per event"),
        ("load from text", f"{report.load_s:,.2f} s"),
        ("index", f"{report.bytes_per_subscription:,.0f} bytes per subscription"),
    )
    console().print(figures_table(title, rows))


def measure(subscriptions: int, events: int, chance: random.Random, steps: Steps) -> MatchReport:
    """Load, check and time an index."""
    steps.begin("compile")
    _compile_kernels()
    texts = [_filter(chance) for _ in range(subscriptions)]
    quotes = [_quote(chance) for _ in range(events)]
    index = MatchIndex()
    load_s = 0.0
    steps.begin("load", subscriptions)
    for first in range(0, subscriptions, _LOADED_AT_A_TIME):
        chunk = list(enumerate(texts[first : first + _LOADED_AT_A_TIME], first))
        load_s += _cpu_s(lambda chunk=chunk: index.add_many(chunk))  # type: ignore[misc]
        steps.advance(len(chunk))
    steps.begin("check")
    _check(index, texts, quotes[:_CHECKED_EVENTS])
    steps.begin("match", 2)
    batch_s = _fastest_s(lambda: index.match_batch(quotes))
    steps.advance()
    single_s = _fastest_s(lambda: [index.match(quote) for quote in quotes])
    found = sum(map(len, index.match_batch(quotes)))
    return MatchReport(
        subscriptions=subscriptions,
        events=events,
        engine=index.engine,
        matches_per_event=found / events,
        batch_us_per_event=batch_s * 1e6 / events,
        single_us_per_event=single_s * 1e6 / events,
        load_s=load_s,
        bytes_per_subscription=index.nbytes / subscriptions,
    )


def _filter(chance: random.Random) -> str:
    low = chance.randrange(_PRICE_MAX)
    high = chance.randrange(low, _PRICE_MAX) + 1
    return f"symbol = 'S{chance.randrange(_SYMBOLS)}' AND price BETWEEN {low} AND {high}"


def _quote(chance: random.Random) -> Quote:
    price = chance.randrange(100 * _PRICE_MAX) / 100
    return {"symbol": f"S{chance.randrange(_SYMBOLS)}", "price": price}


def _compile_kernels() -> None:
    """Use a small index once, so that no compilation is timed."""
    chance = random.Random(0)
    index = MatchIndex()
    index.add_many(enumerate(_filter(chance) for _ in range(2_000)))
    quotes = [_quote(chance) for _ in range(10)]
    index.match_batch(quotes)
    index.match(quotes[0])


def _check(index: MatchIndex, texts: list[str], quotes: list[Quote]) -> None:
    filters = [Filter.parse(text) for text in texts[:_CHECKED_FILTERS]]
    checked = frozenset(range(len(filters)))
    for number, (quote, answer) in enumerate(zip(quotes, index.match_batch(quotes), strict=True)):
        expected = [place for place, each in enumerate(filters) if each.matches(quote)]
        for found in (answer, index.match(quote)):
            if sorted(checked.intersection(found)) != expected:
                raise WrongAnswerError(f"event {number}: the index and its filters disagree")


def _cpu_s(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def _fastest_s(work: Callable[[], object]) -> float:
    return min(_cpu_s(work) for _ in range(_PASSES))
