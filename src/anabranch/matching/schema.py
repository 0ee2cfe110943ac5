"""Attributes, axes and codes: the encoding of filters and events for the engines.

An attribute gets a number when a filter first names it, and an *axis* for every kind of condition
on it: by kind (is it present, is it TRUE), as a number, by code (text equality), in text order. A
text that some filter compares for equality gets a *code*; a text without a code in an event equals
none of them. `predicates` encodes one conjunction as tests on axes, as the words of a record
(`kernels.layout`).

State: names, axes and codes that some entry refers to. A code is released when the last entry that
uses it is removed; unused attribute numbers are collected when they run out. All of it is rebuilt
from the filters.
"""

from collections.abc import Callable

from anabranch.matching import keys
from anabranch.matching.kernels import layout as at
from anabranch.matching.text_conditions import (
    TextPattern,
    pattern_of_condition,
    pattern_of_values,
    single_gaps,
)
from anabranch.model.errors import FilterLimitError
from anabranch.model.event import FLOAT_EXACT_MAX, INFINITY
from anabranch.model.language.expression import Expression
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.normal.number_ranges import ALL_NUMBERS
from anabranch.model.normal.plain_normal_form import Demands, conjunction_of
from anabranch.model.normal.text_ranges import ALL_TEXTS
from anabranch.model.normal.value_set import ValueSet

# The encoding of a conjunction for the engines, and its residual conditions. It is created for one
# `insert` and then discarded; `kernels.layout` defines the words of a record.


class Spelling:
    """A conjunction as words, the format that packs them, and what they leave undecided."""

    __slots__ = ("count", "form", "is_line", "patterned", "residue", "undecided", "words")

    def __init__(self, words: list[int | float], form: str, count: int) -> None:
        """A spelling of `count` single ranges and codes; more can be put behind them."""
        self.count = count
        self.words = words
        #: One letter per word, as `struct` has them.
        self.form = form
        #: Whether every predicate is a single range or a single code, and they fit into a line.
        self.is_line = count <= at.LINE_RANGES
        #: Constraints that the words imply but do not decide.
        self.undecided: list[tuple[str, ValueSet]] = []
        #: Residues that the words do not decide.
        self.residue: tuple[Expression, ...] = ()
        #: Attributes on which a pattern is spelled: there is one at the most.
        self.patterned: tuple[str, ...] = ()

    def put(self, form: str, *words: int | float) -> None:
        """Append one predicate that is not a single range or code."""
        self.count += 1
        self.is_line = False
        self.form += form
        self.words += words

    def put_line(self, form: str, *words: int | float) -> None:
        self.count += 1
        self.is_line = self.is_line and self.count <= at.LINE_RANGES
        self.form += form
        self.words += words


#: A set with more ranges than this is tested by its hull, and its residue by hand.
RANGES_MAX = 32
#: A set with more texts than this likewise.
CODES_MAX = 16_384

#: Set in a predicate's head: the ends of its ranges are floats yet to be made keys.
FLOAT_ENDS = 1 << 62
_NUMBER_RANGE = at.RANGES << 16 | 1 << 24 | FLOAT_ENDS

#: Between these every number is a float.
_PLAIN_MIN = -FLOAT_EXACT_MAX
_PLAIN_MAX = FLOAT_EXACT_MAX

_ABSENT = 1 << at.K_ABSENT
_NUMBER = 1 << at.K_NUMBER
_NAN = 1 << at.K_NAN
_TEXT = 1 << at.K_TEXT


class Schema:
    """Numbers for attributes and axes, codes for texts."""

    def __init__(
        self,
        open_axis: Callable[[int, int, int], None],
        attributes_max: int,
        learn_code: Callable[[int, int, str], None] | None = None,
        learn_pattern: Callable[[int, int, int, bytes], None] | None = None,
        learn_name: Callable[[int, str], None] | None = None,
    ) -> None:
        #: Tells the engine about a new axis: (axis, attribute, space).
        self._open_axis = open_axis
        #: Is told about a new attribute, if it wants to be: (attribute, name).
        self._learn_name = learn_name
        #: Is told about a new code, if it wants to be: (code, attribute, text).
        self._learn_code = learn_code
        #: Is told about a new pattern: (code, attribute, kind, literal). None: no patterns.
        self._learn_pattern = learn_pattern
        self._attributes_max = attributes_max
        self.attributes: dict[str, int] = {}
        self.names: list[str | None] = []
        self._free_attributes: list[int] = []
        #: Per space: attribute number → axis.
        self.axes: tuple[dict[int, int], ...] = ({}, {}, {}, {}, {})
        #: Attribute name → head of a single range on its number axis.
        self._number_heads: dict[str, int] = {}
        #: Attribute name → head of a single code on its code axis, and its codes.
        self._code_heads: dict[str, tuple[int, dict[str, int]]] = {}
        self.axis_count = 0
        self._free_axes: list[int] = []
        #: Attribute number → text → code.
        self.codes: dict[int, dict[str, int]] = {}
        #: Attribute number → (kind, literal) → code.
        self.patterns: dict[int, dict[tuple[int, bytes], int]] = {}
        #: Code → (attribute number, its text, or kind and literal of its pattern); None when free.
        self.texts: list[tuple[int, str | tuple[int, bytes]] | None] = []
        self._free_codes: list[int] = []
        #: Codes created since the list was last emptied, to be released if a filter is rejected.
        self.fresh: list[int] = []

    # -- attributes, axes, codes --------------------------------------------------------------

    def axis(self, name: str, space: int) -> int:
        attribute = self.attributes.get(name)
        if attribute is None:
            attribute = self._new_attribute(name)
        axis = self.axes[space].get(attribute)
        if axis is None:
            axis = self._free_axes.pop() if self._free_axes else self._new_axis(name)
            self.axis_count = max(self.axis_count, axis + 1)
            self.axes[space][attribute] = axis
            self._open_axis(axis, attribute, space)
        return axis

    def _new_axis(self, name: str) -> int:
        if self.axis_count >= at.NO_AXIS:
            raise FilterLimitError(
                f"the index looks at its attributes in {self.axis_count} ways (as a number, as a"
                f" text, …) already, which is its limit; {name!r} would need one more"
            )
        return self.axis_count

    def _new_attribute(self, name: str) -> int:
        if self._free_attributes:
            attribute = self._free_attributes.pop()
            self.names[attribute] = name
        else:
            attribute = len(self.names)
            if attribute >= self._attributes_max:
                raise FilterLimitError(
                    f"the index knows {attribute} attribute names already, which is its limit;"
                    f" {name!r} would be one more"
                )
            self.names.append(name)
        self.attributes[name] = attribute
        if self._learn_name is not None:
            self._learn_name(attribute, name)
        return attribute

    def code(self, name: str, text: str) -> int:
        attribute = self.attributes[name]
        codes = self.codes.setdefault(attribute, {})
        code = codes.get(text)
        if code is None:
            code = codes[text] = self._new_code(attribute, text)
            if self._learn_code is not None:
                self._learn_code(code, attribute, text)
        return code

    def _pattern_code(self, pattern: TextPattern) -> int:
        attribute = self.attributes[pattern.name]
        codes = self.patterns.setdefault(attribute, {})
        key = (pattern.kind, pattern.literal)
        code = codes.get(key)
        if code is None:
            code = codes[key] = self._new_code(attribute, key)
            assert self._learn_pattern is not None
            self._learn_pattern(code, attribute, *key)
        return code

    def _new_code(self, attribute: int, text: str | tuple[int, bytes]) -> int:
        code = self._free_codes.pop() if self._free_codes else len(self.texts)
        if code == len(self.texts):
            self.texts.append((attribute, text))
        else:
            self.texts[code] = (attribute, text)
        self.fresh.append(code)
        return code

    def free_code(self, code: int) -> None:
        known = self.texts[code]
        assert known is not None
        attribute, text = known
        if isinstance(text, str):
            del self.codes[attribute][text]
        else:
            del self.patterns[attribute][text]
        self.texts[code] = None
        self._free_codes.append(code)

    def free_unused(self, is_used: Callable[[int], bool]) -> list[tuple[int, int]]:
        """Give back unused axes and attributes; returns (attribute, space) of each axis."""
        closed = []
        self._number_heads.clear()
        self._code_heads.clear()
        for space, axes in enumerate(self.axes):
            for attribute, axis in list(axes.items()):
                if not is_used(axis):
                    del axes[attribute]
                    self._free_axes.append(axis)
                    closed.append((attribute, space))
        for name, attribute in list(self.attributes.items()):
            if not any(attribute in axes for axes in self.axes):
                del self.attributes[name]
                self.codes.pop(attribute, None)
                self.patterns.pop(attribute, None)
                self.names[attribute] = None
                self._free_attributes.append(attribute)
        return closed

    def restore(self, names: list[str | None]) -> None:
        """Take over the names that another schema knew, for reading."""
        self.names = names
        self.attributes = {name: i for i, name in enumerate(names) if name is not None}

    # -- conjunctions -------------------------------------------------------------------------

    def spell(self, conjunction: Conjunction) -> Spelling:
        spelling = Spelling([], "", 0)
        words = spelling.words
        heads = self._number_heads
        plain = 0
        if conjunction.residue:
            self._spell_residue(spelling, conjunction)
        for name, values in conjunction.constraints:
            numbers = values.numbers
            if (
                len(numbers) == 1
                and name in heads
                and not (values.texts or values.truths or values.nan or values.absent)
            ):
                low, high = numbers[0]
                # Ends in this span are floats for certain; both infinite is a matter of kind.
                if (
                    high >= _PLAIN_MIN
                    and low <= _PLAIN_MAX
                    and (
                        (low >= _PLAIN_MIN and (high <= _PLAIN_MAX or high == INFINITY))
                        or (low == -INFINITY and high <= _PLAIN_MAX)
                    )
                ):
                    words += (heads[name], low, high)
                    spelling.form += "qdd"
                    plain += 1
                    continue
            texts = values.texts
            if (
                len(texts) == 1
                and name in self._code_heads
                and texts[0][1] == texts[0][0] + "\0"
                and not (numbers or values.truths or values.nan or values.absent)
            ):
                head, codes = self._code_heads[name]
                code = codes.get(texts[0][0])
                words += (head, self.code(name, texts[0][0]) if code is None else code)
                spelling.form += "qq"
                plain += 1
                continue
            if name in spelling.patterned and texts == ALL_TEXTS:
                continue
            self._spell_constraint(spelling, name, values)
        spelling.count += plain
        spelling.is_line = spelling.is_line and spelling.count <= at.LINE_RANGES
        return spelling

    def spell_plain(self, demands: Demands) -> Spelling:
        """The tests of a plain conjunction: quickest where its attributes are known."""
        words: list[int | float] = []
        form = ""
        number_heads = self._number_heads
        code_heads = self._code_heads
        for name, demand in demands.items():
            if not isinstance(demand, str):
                if name not in number_heads:
                    return self.spell(conjunction_of(demands))
                words += (number_heads[name], *demand)
                form += "qdd"
                continue
            if name not in code_heads:
                return self.spell(conjunction_of(demands))
            head, codes = code_heads[name]
            code = codes.get(demand)
            words += (head, self.code(name, demand) if code is None else code)
            form += "qq"
        return Spelling(words, form, len(demands))

    def _spell_residue(self, spelling: Spelling, conjunction: Conjunction) -> None:
        """Spell one pattern per attribute, where residues imply one."""
        left = []
        for condition in conjunction.residue:
            pattern = pattern_of_condition(condition) if self._learn_pattern else None
            if pattern is None or pattern.name in spelling.patterned:
                left.append(condition)
                continue
            self._spell_pattern(spelling, pattern)
            if not pattern.is_exact:
                left.append(condition)
        spelling.residue = tuple(left)

    def _spell_pattern(self, spelling: Spelling, pattern: TextPattern) -> None:
        axis = self.axis(pattern.name, at.PATTERN)
        code = self._pattern_code(pattern)
        spelling.put_line("qq", axis | at.PATTERN_CODE << 16 | 1 << 24, code)
        spelling.patterned += (pattern.name,)

    def _spell_constraint(self, spelling: Spelling, name: str, values: ValueSet) -> None:
        if values.truths or values.nan or values.absent or (values.numbers and values.texts):
            self._spell_kinds(spelling, name, values)
        elif values.numbers:
            self._spell_numbers(spelling, name, values)
        else:
            self._spell_texts(spelling, name, values)

    def _spell_numbers(self, spelling: Spelling, name: str, values: ValueSet) -> None:
        ranges = values.numbers
        if ranges == ALL_NUMBERS:
            self._spell_kinds(spelling, name, values)
            return
        if len(ranges) > RANGES_MAX:
            spelling.undecided.append((name, values))
            ranges = ((ranges[0][0], ranges[-1][1]),)
        axis = self.axis(name, at.NUMBER)
        count = len(ranges)
        ends = [end for pair in ranges for end in pair]
        if all(map(keys.is_float, ends)):
            head = axis | at.RANGES << 16 | count << 24 | FLOAT_ENDS
            put = spelling.put_line if count == 1 else spelling.put
            put("q" + "dd" * count, head, *ends)
            self._number_heads[name] = axis | _NUMBER_RANGE
        else:
            head = axis | at.FINE_RANGES << 16 | count << 24
            words = [word for end in ends for word in keys.key_and_rest(end)]
            spelling.put("q" + "qqqq" * count, head, *words)

    def _spell_texts(self, spelling: Spelling, name: str, values: ValueSet) -> None:
        ranges = values.texts
        if ranges == ALL_TEXTS:
            self._spell_kinds(spelling, name, values)
            return
        points = [start for start, end in ranges if end == start + "\0"]
        if len(points) == len(ranges) and len(points) <= CODES_MAX:
            self._spell_codes(spelling, name, at.CODES, points)
            return
        prefix = pattern_of_values(name, values) if self._learn_pattern else None
        if prefix is not None and name not in spelling.patterned:
            self._spell_pattern(spelling, prefix)
            return
        gaps = single_gaps(values)
        if gaps is not None and len(gaps) <= CODES_MAX:
            self._spell_codes(spelling, name, at.NOT_CODES, gaps)
            return
        if len(ranges) > RANGES_MAX:
            ranges = ((ranges[0][0], ranges[-1][1]),)
        ends = [text for pair in ranges for text in pair if text is not None]
        if len(ranges) < len(values.texts) or any(map(keys.is_long, ends)):
            spelling.undecided.append((name, values))
        axis = self.axis(name, at.TEXT)
        words = [word for start, end in ranges for word in keys.keys_of_texts(start, end)]
        head = axis | at.RANGES << 16 | len(ranges) << 24
        put = spelling.put_line if len(ranges) == 1 else spelling.put
        put("q" * (1 + len(words)), head, *words)

    def _spell_codes(self, spelling: Spelling, name: str, test: int, texts: list[str]) -> None:
        axis = self.axis(name, at.CODE)
        codes = [self.code(name, text) for text in texts]
        put = spelling.put
        if test == at.CODES and len(codes) == 1:
            put = spelling.put_line
            single = axis | at.CODES << 16 | 1 << 24
            self._code_heads[name] = (single, self.codes[self.attributes[name]])
        put("q" * (1 + len(codes)), axis | test << 16 | len(codes) << 24, *codes)

    def _spell_kinds(self, spelling: Spelling, name: str, values: ValueSet) -> None:
        """Kinds of values that occur; those that occur in part are left to be decided."""
        mask = values.truths << at.K_FALSE
        mask |= _NUMBER if values.numbers else 0
        mask |= _TEXT if values.texts else 0
        mask |= _NAN if values.nan else 0
        mask |= _ABSENT if values.absent else 0
        partly = values.numbers not in ((), ALL_NUMBERS) or values.texts not in ((), ALL_TEXTS)
        if partly:
            spelling.undecided.append((name, values))
        axis = self.axis(name, at.KIND)
        spelling.put("qq", axis | at.KINDS << 16 | 1 << 24, mask)
