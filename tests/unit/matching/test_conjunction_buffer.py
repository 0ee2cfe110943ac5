"""The buffer: what the kernel reads from a message is what the schema spells, or nothing."""

import struct

import msgspec
import pytest

from tests.covering_parts import conjunction

pytest.importorskip("numba")

from anabranch.matching.compiled import CompiledEngine
from anabranch.matching.compiled_boxes import ConjunctionBuffer
from anabranch.matching.kernels.read_conjunction import NAMES, READ, TOTAL, UNREAD, look
from anabranch.matching.schema import Schema
from anabranch.model.normal.conjunction import EVERY_EVENT, Conjunction

NUMBERS = [
    *(0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**53),
    *(-1, -32, -33, -128, -129, -32_768, -32_769, -(2**31), -(2**31) - 1, -(2**53)),
    *(0.5, -0.0, -2.25, 1e300, -1e300, 5e-324),
]
TEXTS = ["", "k", "Größe", "漢字", "a" * 31, "a" * 32, "a" * 255, "a" * 256, "a\0"]


class Office:
    """A buffer with the schema it learns from."""

    def __init__(self) -> None:
        self.engine = CompiledEngine()
        self.buffer = ConjunctionBuffer()
        self.schema = Schema(self.engine.open_axis, 100, self._learn)

    def _learn(self, code: int, attribute: int, text: str) -> None:
        self.buffer.learn(attribute, text, code)

    def spelled(self, conjunction: Conjunction) -> list[int]:
        """The words by way of the schema, which also learns what is new."""
        spelling = self.schema.spell(conjunction)
        for name, _ in conjunction.constraints:
            if not self.buffer.knows(NAMES, name):
                self.buffer.learn(NAMES, name, self.schema.attributes[name])
        form = "<q" + spelling.form
        struct.pack_into(form, self.buffer.words.data, 0, spelling.count, *spelling.words)
        look(self.engine.memory.context, self.buffer.vector, 0, READ)
        return self._words()

    def read(self, conjunction: Conjunction) -> list[int] | None:
        """The words by way of a message; None if the kernel leaves it unread."""
        raw = msgspec.msgpack.encode(conjunction.constraints)
        self.buffer.reserve_message(len(raw))
        self.buffer.message_view[: len(raw)] = raw
        self.buffer.words[:] = 0
        if look(self.engine.memory.context, self.buffer.vector, len(raw), READ) == UNREAD:
            return None
        return self._words()

    def _words(self) -> list[int]:
        words: list[int] = self.buffer.words[: self.buffer.vector[TOTAL]].tolist()
        return words


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_every_width_are_read_as_they_are_spelled(
    office: Office, number: int | float
) -> None:
    for text in (f"x = {number}", f"x >= {number}", f"x <= {number}"):
        wanted = conjunction(text)
        assert office.spelled(wanted) == office.read(wanted)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_every_length_are_read_as_they_are_spelled(office: Office, text: str) -> None:
    wanted = conjunction(f"s = '{text}' AND x > 1")
    assert office.spelled(wanted) == office.read(wanted)


def test_long_names_are_read(office: Office) -> None:
    name = "n" * 100
    wanted = conjunction(f"{name} BETWEEN 1 AND 2.5 AND b = 'k' AND c < 7")
    assert office.spelled(wanted) == office.read(wanted)


def test_conjunction_of_nothing_is_read(office: Office) -> None:
    assert office.read(EVERY_EVENT) == [0]


@pytest.mark.parametrize(
    "text",
    [
        "x = 9007199254740993",
        "x BETWEEN 1 AND 9007199254740993",
        "x IN (1, 2)",
        "x <> 1",
        "s IN ('a', 'b')",
        "s >= 'a'",
        "s LIKE 'a%'",
        "s <> 'a'",
        "x IS NOT NULL",
        "x IS NULL",
        "flag = TRUE",
        "a > 1 AND b > 1 AND c > 1 AND d > 1 AND e > 1 AND f > 1",
    ],
)
def test_what_is_not_plain_is_left_unread(office: Office, text: str) -> None:
    office.spelled(conjunction("x > 1 AND s = 'a'"))
    office.spelled(conjunction(text))
    assert office.read(conjunction(text)) is None


def test_unknown_names_and_texts_are_left_unread(office: Office) -> None:
    office.spelled(conjunction("s = 'a' AND x > 1"))
    assert office.read(conjunction("y > 1")) is None
    assert office.read(conjunction("s = 'b'")) is None
    assert office.read(conjunction("x = 'a'")) is None
    assert office.read(conjunction("s > 1")) is None


def test_forgotten_texts_are_left_unread_and_can_be_learned_again(office: Office) -> None:
    wanted = conjunction("s = 'a'")
    words = office.spelled(wanted)
    attribute = office.schema.attributes["s"]
    office.buffer.forget(attribute, "a")
    assert office.read(wanted) is None
    office.buffer.learn(attribute, "a", words[2])
    assert office.read(wanted) == words


def test_forgotten_names_are_left_unread(office: Office) -> None:
    wanted = conjunction("x > 1")
    office.spelled(wanted)
    office.buffer.forget_names()
    assert office.read(wanted) is None
    assert not office.buffer.knows(NAMES, "x")


def test_glossary_keeps_its_words_as_it_grows_and_shrinks(office: Office) -> None:
    office.spelled(conjunction("s = 'a'"))
    attribute = office.schema.attributes["s"]
    for code in range(5_000):
        office.buffer.learn(attribute, f"text {code}", code)
        if code >= 100:
            office.buffer.forget(attribute, f"text {code - 100}")
    for code in range(5_000):
        words = office.read(conjunction(f"s = 'text {code}'"))
        assert (words is None) == (code < 4_900)
        assert words is None or words[2] == code
