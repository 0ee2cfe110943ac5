"""What it means that an event matches, told a second time and from scratch.

The checker must not believe the code it checks, so it has its own definition of matching for the
plain form of filters (`history`), small enough to be seen to be right:

1. A predicate about an absent attribute does not hold, whatever its operator.
2. Text compares with text, a number with a number, a truth with a truth; nothing else holds.
3. Truths are equal or not; they have no order. NaN compares with nothing, not even as different.

A filter in words is evaluated by walking its tree, which is the definition of the language; no
compiled form and no index takes part.
"""

from collections.abc import Mapping
from functools import lru_cache

from anabranch.check.history import AnyFilter
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import evaluate
from anabranch.model.language.expression import Expression

#: Operator → the outcomes of comparing (less −1, equal 0, greater 1) for which it holds.
_HOLDS = {"=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


def matches(wanted: AnyFilter, attributes: Mapping[str, Value]) -> bool:
    """Whether one of the conjunctions holds, or what is said in words."""
    if isinstance(wanted, str):
        return evaluate(_tree(wanted), attributes) is True
    return any(
        all(_holds(attributes.get(name), operator, value) for name, operator, value in part)
        for part in wanted
    )


@lru_cache(maxsize=1_024)
def _tree(text: str) -> Expression:
    return Filter.parse(text).expression


def _holds(actual: Value | None, operator: str, value: Value) -> bool:
    if isinstance(actual, bool) or isinstance(value, bool):
        alike = isinstance(actual, bool) and isinstance(value, bool)
        return alike and operator == ("=" if actual is value else "<>")
    if isinstance(actual, str) and isinstance(value, str):
        return (actual > value) - (actual < value) in _HOLDS[operator]
    if isinstance(actual, int | float) and isinstance(value, int | float):
        is_nan = actual != actual or value != value
        return not is_nan and (actual > value) - (actual < value) in _HOLDS[operator]
    return False
