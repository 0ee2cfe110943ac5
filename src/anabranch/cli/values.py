"""Attribute values as people type them: `name=value` arguments, and cells of a table.

    price=12.5   volume=1000   urgent=true   symbol=IBM   zip="01234"   note=

A number without point and exponent is an integer; `true` and `false`, in any case, are truths;
what stands in double quotes is text; so is everything else. Nothing after the `=` is empty text.
"""

import json
import re

from anabranch.cli.errors import CommandError
from anabranch.model.values import INT_MAX, INT_MIN, Value

_INTEGER = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?")


def typed(text: str) -> Value:
    """The value that a text stands for."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        number = int(text)
        return number if INT_MIN <= number <= INT_MAX else text
    if _REAL.fullmatch(text):
        return float(text)
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return text


def attribute(argument: str) -> tuple[str, Value]:
    """Name and value of a `name=value` argument."""
    name, equals, text = argument.partition("=")
    if not equals or not name:
        raise CommandError(f"{argument!r} is neither an address (host:port) nor name=value")
    return name, typed(text)
