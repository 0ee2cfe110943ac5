"""Filters: conditions on the attributes of events.

    Filter.parse("symbol = 'IBM' AND price > 50")
    Filter.from_tuples("[symbol,eq,'IBM'],[price,>,50]")
    Filter.of((attr("symbol") == "IBM") & (attr("price") > 50))

All three are the same filter: equal, with the same hash and the same text. Rules:

1. A filter is its immutable expression tree (see `language.expression`). `a > 1` and `1 < a` match
   the same events but are two filters; to compare their meaning, use `covers` in both directions.
2. A filter is TRUE, FALSE or UNKNOWN for an event and matches only if it is TRUE. `~f` is therefore
   not the complement of f: an event without an attribute that f tests matches neither f nor ~f.
3. `matches` accepts an event, or a mapping of names to values, which is checked like the attributes
   of an event, with datetimes converted. It evaluates the tree and needs no normal form.
4. `covers`, `intersects` and `conjunctions` use the normal form (see `normal.normal_form`), which
   is computed on first use and cached. If it exceeds the limits, they raise `FilterLimitError`.
5. `covers` is never wrong when it returns True, and `intersects` never when it returns False;
   `normal.conjunction` describes where they are exact.
"""

from collections.abc import Mapping
from typing import NoReturn, Union, cast, final
from weakref import WeakValueDictionary

from anabranch.model.errors import EventError, FilterError
from anabranch.model.event import (
    Attributes,
    Event,
    GivenAttributes,
    check_attributes,
    convert_datetimes,
)
from anabranch.model.language.builder import Condition
from anabranch.model.language.evaluate import Condition as CompiledCondition
from anabranch.model.language.evaluate import compile_condition
from anabranch.model.language.expression import (
    FALSE,
    TRUE,
    Expression,
    check_expression,
    conjunction_of,
    disjunction_of,
    negation_of,
)
from anabranch.model.language.parser import parse_expression
from anabranch.model.language.tokens import expression_text
from anabranch.model.language.tuples import parse_tuples
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conditions import search_weight
from anabranch.model.normal.conjunction import Conjunction, any_intersects, each_is_covered
from anabranch.model.normal.memory_cost import FilterCost, filter_cost
from anabranch.model.normal.normal_form import normalise
from anabranch.model.read_ahead import FAILURE_BYTES, ReadAhead, Reading

FilterSource = Union["Filter", Condition, Expression]

_set = object.__setattr__


@final
class Filter:
    """An immutable filter. See the rules at the top of this module."""

    __slots__ = (
        "__weakref__",
        "_condition",
        "_conjunctions",
        "_expression",
        "_limits",
        "_weight",
    )

    _expression: Expression
    _limits: Limits
    #: The compiled tree; None until the first match.
    _condition: CompiledCondition | None
    #: The normal form; None until first use.
    _conjunctions: tuple[Conjunction, ...] | None
    #: `search_weight`; -1 until first use.
    _weight: int

    def __init__(self, source: FilterSource, limits: Limits = DEFAULT_LIMITS) -> None:
        _set_parts(self, _checked_tree(source, limits), limits)

    @classmethod
    def parse(cls, text: str, limits: Limits = DEFAULT_LIMITS) -> "Filter":
        """Parse a filter; raise `FilterError` with the position of a mistake."""
        cached = _prepared.find((text, limits))
        if cached is None and _remembered:
            cached = _remembered.get((text, limits))
        if cached is None:
            return _of_checked(parse_expression(text, limits), limits)
        if isinstance(cached, FilterError):
            raise cached.with_traceback(None)
        return cached

    @classmethod
    def reading(
        cls, text: str, limits: Limits = DEFAULT_LIMITS, *, compiled: bool = False
    ) -> "Reading[tuple[str, Limits], Filter | FilterError] | None":
        """Return a `Reading` that parses a text ahead of its use, and compiles it if wanted.

        `parse` then finds the filter with its normal form, or its error. None if the text is
        remembered, and compiled if wanted.
        """
        known = _remembered.get((text, limits))
        if known is not None and (known.is_compiled or not compiled):
            return None
        return Reading(
            _prepared, (text, limits), text, lambda: _read(text, limits, compiled=compiled)
        )

    @property
    def is_compiled(self) -> bool:
        """Whether `compile` was called, or an event matched."""
        return self._condition is not None

    def compile(self) -> None:
        """Compile the filter now instead of at the first match."""
        if self._condition is None:
            _set(self, "_condition", compile_condition(self._expression))

    def remember(self, text: str) -> None:
        """Let `parse` return this filter for an equivalent text, as long as the filter is
        referenced.
        """
        _remembered[text, self._limits] = self

    @classmethod
    def from_tuples(cls, text: str, limits: Limits = DEFAULT_LIMITS) -> "Filter":
        """Parse a list of tuples such as `[class,eq,'STOCK'],[open,<,22]`."""
        return _of_checked(parse_tuples(text, limits), limits)

    @classmethod
    def of(cls, source: FilterSource, limits: Limits = DEFAULT_LIMITS) -> "Filter":
        """Return the filter of a condition built with `attr`, or of a tree; a filter is returned
        unchanged.
        """
        return source if isinstance(source, Filter) else cls(source, limits)

    @classmethod
    def everything(cls) -> "Filter":
        """Return TRUE, which matches every event."""
        return _of_checked(TRUE, DEFAULT_LIMITS)

    @classmethod
    def nothing(cls) -> "Filter":
        """Return FALSE, which matches no event."""
        return _of_checked(FALSE, DEFAULT_LIMITS)

    @property
    def expression(self) -> Expression:
        """The expression tree."""
        return self._expression

    @property
    def conjunctions(self) -> tuple[Conjunction, ...]:
        """The normal form: the filter matches an event exactly if one of these conjunctions
        does.
        """
        cached = self._conjunctions
        if cached is None:
            cached = normalise(self._expression, self._limits)
            _set(self, "_conjunctions", cached)
        return cached

    @property
    def search_weight(self) -> int:
        """The weight of the searches that an evaluation may make (`language.like`)."""
        if self._weight < 0:
            _set(self, "_weight", search_weight(self._expression))
        return self._weight

    def cost(self, text: str) -> FilterCost:
        """Return the memory that a broker needs to hold this filter, which was parsed from
        `text`.
        """
        return filter_cost(text, self.conjunctions)

    def matches(self, event: Event | GivenAttributes) -> bool:
        """Return whether the filter is TRUE for the event, or for these attributes."""
        condition = self._condition
        if condition is None:
            condition = compile_condition(self._expression)
            _set(self, "_condition", condition)
        if isinstance(event, Event):
            return condition(event.attributes) is True
        return condition(_checked_attributes(event, self._limits)) is True

    def covers(self, other: FilterSource) -> bool:
        """Return True only if every event that matches `other` matches this filter."""
        return each_is_covered(Filter.of(other).conjunctions, self.conjunctions)

    def intersects(self, other: FilterSource) -> bool:
        """Return False only if no event matches both this filter and `other`."""
        return any_intersects(self.conjunctions, Filter.of(other).conjunctions)

    def __and__(self, other: FilterSource) -> "Filter":
        tree = conjunction_of((self._expression, Filter.of(other)._expression))
        return Filter(tree, self._limits)

    def __or__(self, other: FilterSource) -> "Filter":
        tree = disjunction_of((self._expression, Filter.of(other)._expression))
        return Filter(tree, self._limits)

    def __invert__(self) -> "Filter":
        """NOT: matches where this filter is FALSE; where it is UNKNOWN, neither matches."""
        return Filter(negation_of(self._expression), self._limits)

    def __bool__(self) -> NoReturn:
        raise FilterError(
            "a filter has no truth value without an event",
            expected="& | ~ instead of and, or, not; matches(event) to try it",
        )

    def __eq__(self, other: object) -> bool:
        return (
            self._expression == other._expression if isinstance(other, Filter) else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self._expression)

    def __str__(self) -> str:
        return expression_text(self._expression)

    def __repr__(self) -> str:
        return f"Filter.parse({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _of_checked, (self._expression, self._limits)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a filter never changes: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a filter never changes: {name} cannot be deleted")


#: Cached by text and limits.
_prepared: ReadAhead[tuple[str, Limits], Filter | FilterError] = ReadAhead("filter")
_remembered: WeakValueDictionary[tuple[str, Limits], Filter] = WeakValueDictionary()


def _read(text: str, limits: Limits, *, compiled: bool) -> tuple[Filter | FilterError, int]:
    """Return the filter of a text, or its error, with the size in bytes."""
    try:
        created = Filter.parse(text, limits)
        cost = created.cost(text)
        if compiled:
            created.compile()
        return created, cost.bytes
    except FilterError as error:
        return error.with_traceback(None), len(text) + FAILURE_BYTES


def _set_parts(target: Filter, expression: Expression, limits: Limits) -> None:
    _set(target, "_expression", expression)
    _set(target, "_limits", limits)
    _set(target, "_condition", None)
    _set(target, "_conjunctions", None)
    _set(target, "_weight", -1)


def _of_checked(expression: Expression, limits: Limits) -> Filter:
    """Return a filter of a tree that is known to be valid."""
    created = object.__new__(Filter)
    _set_parts(created, expression, limits)
    return created


def _checked_tree(source: FilterSource, limits: Limits) -> Expression:
    if isinstance(source, str):
        raise FilterError("a filter cannot be created from text", expected="Filter.parse(text)")
    tree = source.expression if isinstance(source, Filter | Condition) else source
    check_expression(tree, limits)
    return tree


def _checked_attributes(attributes: GivenAttributes, limits: Limits) -> Attributes:
    if not isinstance(attributes, Mapping):
        raise EventError(
            f"a {type(attributes).__name__} is neither an event nor a mapping of attributes"
        )
    given = cast("Attributes", attributes)
    try:
        check_attributes(given, limits)
    except EventError:
        converted = dict(given)
        if not convert_datetimes(converted):
            raise
        check_attributes(converted, limits)
        return converted
    return given
