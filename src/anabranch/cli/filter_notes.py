"""Notes on filters that are right, but may mean something else than their author.

`symbol = IBM` compares two attributes, because a text has quotes.
Someone who wanted the text 'IBM' gets no event and no error. Stateless.
"""

from collections.abc import Iterator

import typer

from anabranch.model.filter import Filter
from anabranch.model.language.expression import And, Attribute, Comparison, Expression, In, Not, Or


def say_notes(filter: Filter) -> None:
    """Print a note for each name that may be meant as a text, on stderr."""
    for name in dict.fromkeys(_names_like_texts(filter.expression)):
        text = name.replace("'", "''")
        typer.echo(
            f"note: {name} is the name of an attribute here; as a text, write it in quotes:"
            f" '{text}'",
            err=True,
        )


def _names_like_texts(expression: Expression) -> Iterator[str]:
    """The attributes on the right of `=`, `<>` and IN whose left side is an attribute too."""
    match expression:
        case And(items) | Or(items):
            for item in items:
                yield from _names_like_texts(item)
        case Not(item):
            yield from _names_like_texts(item)
        case Comparison("=" | "<>", Attribute(), Attribute(name)):
            yield name
        case In(Attribute(), items):
            yield from (item.name for item in items if isinstance(item, Attribute))
