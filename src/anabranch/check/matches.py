"""What it means that an event matches, told a second time and from scratch.

The checker must not believe the code it checks, so it has its own definition of matching for the
plain form of filters (`history`), small enough to be seen to be right:

1. A predicate about an absent attribute does not hold, whatever its operator.
2. Text compares with text, a number with a number, a truth with a truth; nothing else holds.
3. Truths are equal or not; they have no order. NaN compares with nothing, not even as different.
"""

from collections.abc import Mapping

from anabranch.check.history import PlainFilter
from anabranch.model.values import Value

#: Operator → the outcomes of comparing (less −1, equal 0, greater 1) for which it holds.
_HOLDS = {"=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


def matches(plain: PlainFilter, attributes: Mapping[str, Value]) -> bool:
    """Whether one of the conjunctions holds."""
    return any(
        all(_holds(attributes.get(name), operator, value) for name, operator, value in part)
        for part in plain
    )


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
