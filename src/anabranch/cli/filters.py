"""`anabranch filter`: check filters, match them against events and compare them.

Events are JSON objects, one per line: strings, numbers and booleans are attribute values. A number
is an integer if it has neither a decimal point nor an exponent. `null` is rejected: leave out
attributes that have no value.

`check` prints the constraints of the normal form as text. The normal form stores number ranges with
both ends included, so `price > 50` starts at the next number after 50, and stores a prefix as the
range from the prefix to the first string after it. The text converts them back: `> 50`, `'IB'…`. Of
a range end and its neighbour it shows the one with fewer digits, which is probably the one that the
user wrote. The text is for reading and is never parsed.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anabranch.cli.errors import CommandError
from anabranch.cli.filter_notes import say_notes
from anabranch.cli.output import counted, print_json
from anabranch.cli.values import json_problem
from anabranch.model.errors import EventError
from anabranch.model.event import (
    FLOAT_EXACT_MAX,
    INFINITY,
    Event,
    Number,
    Value,
    number_after,
    number_before,
    prefix_end,
    text_after,
)
from anabranch.model.filter import Filter
from anabranch.model.language.tokens import expression_text, string_text
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.normal.value_set import FALSE_BIT, TRUE_BIT, NumberRange, TextRange, ValueSet


def constraint_text(values: ValueSet) -> str:
    """The permitted values of one attribute, such as `< 5 or = 'none' or absent`."""
    return " or ".join(_parts(values))


def _parts(values: ValueSet) -> Iterator[str]:
    yield from map(_number_text, values.numbers)
    yield from map(_text_text, values.texts)
    if values.truths & TRUE_BIT:
        yield "TRUE"
    if values.truths & FALSE_BIT:
        yield "FALSE"
    if values.nan:
        yield "NaN"
    if values.absent:
        yield "absent"


def _number_text(piece: NumberRange) -> str:
    low, high = piece
    if low == high:
        return f"= {_digits(low)}"
    ends = [_low_text(low)] if low > -INFINITY else []
    ends += [_high_text(high)] if high < INFINITY else []
    return " and ".join(ends) or "any number"


def _low_text(low: Number) -> str:
    own, before = _digits(low), _digits(number_before(low))
    return f"> {before}" if len(before) < len(own) else f">= {own}"


def _high_text(high: Number) -> str:
    own, after = _digits(high), _digits(number_after(high))
    return f"< {after}" if len(after) < len(own) else f"<= {own}"


def _digits(number: Number) -> str:
    """A number as text; the same for an integer and an equal float."""
    if -FLOAT_EXACT_MAX < number < FLOAT_EXACT_MAX and number == int(number):
        return str(int(number))
    return repr(number)


def _text_text(piece: TextRange) -> str:
    start, end = piece
    if end == text_after(start):
        return f"= {string_text(start)}"
    if start and end == prefix_end(start):
        return f"{string_text(start)}…"
    ends = [f">= {string_text(start)}"] if start else []
    ends += [f"< {string_text(end)}"] if end is not None else []
    return " and ".join(ends) or "any text"


app = typer.Typer(
    name="filter",
    help="Check filters, match them against events, compare them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

FilterText = Annotated[str, typer.Argument(metavar="FILTER", show_default=False)]
Tuples = Annotated[
    bool, typer.Option("--tuples", help="Read the tuple form: [class,eq,'STOCK'],[open,<,22]")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document per line.")]


@app.command()
def check(
    text: Annotated[str | None, typer.Argument(metavar="[FILTER]", show_default=False)] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the filter from a file.")
    ] = None,
    tuples: Tuples = False,
    as_json: Json = False,
) -> None:
    """Parse a filter; print its canonical text and its normal form.

    The normal form is a list of conjunctions; an event matches if any of them does. Conditions
    on more than one attribute are shown with "and" and are evaluated as written.
    """
    checked = _filter(_text(text, file), tuples)
    say_notes(checked)
    if as_json:
        print_json(_document(checked))
    else:
        typer.echo("\n".join(_summary(checked)))


@app.command()
def match(
    text: FilterText,
    *,
    event: Annotated[
        list[str] | None,
        typer.Option("--event", "-e", metavar="JSON", help="An event; repeatable."),
    ] = None,
    tuples: Tuples = False,
    as_json: Json = False,
) -> None:
    """Print the events that match a filter.

    Events are JSON objects, given with --event or one per line on stdin. Matching lines are printed
    unchanged; with --json there is one answer for every event.
    """
    chosen = _filter(text, tuples)
    lines = [one.encode() for one in event] if event else typer.get_binary_stream("stdin")
    for number, line in _numbered(lines):
        answer = chosen.matches(_event(line, number))
        if as_json:
            print_json({"event": number, "matches": answer})
        elif answer:
            typer.echo(line)


@app.command()
def covers(
    wide: Annotated[str, typer.Argument(metavar="A", show_default=False)],
    narrow: Annotated[str, typer.Argument(metavar="B", show_default=False)],
    *,
    tuples: Tuples = False,
    as_json: Json = False,
) -> None:
    """Check whether every event that matches B also matches A.

    "yes" is always correct. "no" can also mean that covering cannot be decided for these filters.
    For "intersects" it is the opposite: "no" is always correct.
    """
    first, second = _filter(wide, tuples), _filter(narrow, tuples)
    answers = {
        "a_covers_b": first.covers(second),
        "b_covers_a": second.covers(first),
        "intersects": first.intersects(second),
    }
    if as_json:
        print_json(answers)
        return
    for question, answer in answers.items():
        typer.echo(f"{question.replace('_', ' ')}: {'yes' if answer else 'no'}")


def _text(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise CommandError("give either a filter or --file")
    if file is None:
        assert text is not None
        return text
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{file}: not UTF-8 text, at byte {error.start}") from None


def _filter(text: str, tuples: bool) -> Filter:
    return Filter.from_tuples(text) if tuples else Filter.parse(text)


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, without their line ends, and their numbers."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line.rstrip(b"\r\n")


def _event(line: bytes, number: int) -> Event:
    try:
        return Event(msgspec.json.decode(line, type=dict[str, Value]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"event {number}: {json_problem(line, error)}") from None
    except EventError as error:
        raise CommandError(f"event {number}: {error}") from None


def _summary(checked: Filter) -> Iterator[str]:
    conjunctions = checked.conjunctions
    yield f"filter: {checked}"
    if not conjunctions:
        yield "matches no event: the filter is contradictory"
        return
    yield f"normal form: {counted(len(conjunctions), 'conjunction')}"
    for number, conjunction in enumerate(conjunctions, 1):
        yield f"  {number}. {'; '.join(_conditions(conjunction)) or 'every event'}"


def _conditions(conjunction: Conjunction) -> Iterator[str]:
    for name, values in conjunction.constraints:
        yield f"{name}: {constraint_text(values)}"
    for residue in conjunction.residue:
        yield f"and {expression_text(residue)}"


def _document(checked: Filter) -> dict[str, object]:
    return {
        "filter": str(checked),
        "conjunctions": [
            {
                "constraints": {n: constraint_text(v) for n, v in conjunction.constraints},
                "residue": [expression_text(residue) for residue in conjunction.residue],
            }
            for conjunction in checked.conjunctions
        ],
    }
