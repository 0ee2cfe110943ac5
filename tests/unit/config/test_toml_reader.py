"""The lines of keys in TOML text."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.config.toml_reader import KeyPath, key_lines, key_text, quoted_key, quoted_text

EXAMPLES = Path(__file__).parents[3] / "src" / "anabranch" / "config" / "examples"

AWKWARD = """# a comment with [brackets] and a = "key"
title = "x # no comment" # = [

[a.b]
"quoted key" = 1
'literal.key' = 'it # is'
dotted.key.here = { x = 1, y = [2, { z = 3 }] }
many = [
  "one", # first ]
  "two",

  [ 3, 4 ], # nested
]
text = \"\"\"
[not.a.table]
also = "no key" \\\"\"\" still
end with quotes\"\"\"\"\"
raw = '''
[[not]]
'''
when = 1979-05-27 07:32:00
after = true

[[list]]
name = 1
[[list]]
name = 2
[list.inner]
deep = -1.5e3
[[list.inner.rows]]
cell = 0x1F
[late]
[ late . spaced ]
"" = 0
"""


def paths_of(value: object, path: KeyPath = ()) -> set[KeyPath]:
    """Every path of a parsed document."""
    inside: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    return {path for path in [path] if path}.union(
        *(paths_of(each, (*path, key)) for key, each in inside)
    )


def test_awkward_text_has_every_key_on_its_line() -> None:
    lines = key_lines(AWKWARD)
    assert set(lines) == paths_of(tomllib.loads(AWKWARD))
    text = AWKWARD.splitlines()
    for path, found in [
        (("title",), "title = "),
        (("a",), "[a.b]"),
        (("a", "b", "quoted key"), '"quoted key"'),
        (("a", "b", "literal.key"), "'literal.key'"),
        (("a", "b", "dotted", "key", "here", "y", 1, "z"), "dotted.key.here"),
        (("a", "b", "many", 1), '  "two",'),
        (("a", "b", "many", 2, 1), "  [ 3, 4 ],"),
        (("a", "b", "raw"), "raw = '''"),
        (("a", "b", "after"), "after = true"),
        (("list", 1, "name"), "name = 2"),
        (("list", 1, "inner", "rows", 0, "cell"), "cell = 0x1F"),
        (("late", "spaced"), "[ late . spaced ]"),
        (("late", "spaced", ""), '"" = 0'),
    ]:
        assert text[lines[path] - 1].startswith(found), path


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml")))
def test_every_key_of_the_examples_is_found(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    lines = key_lines(text)
    assert set(lines) == paths_of(tomllib.loads(text))
    for path, line in lines.items():
        assert str(path[-1]) in text.splitlines()[line - 1] or isinstance(path[-1], int)


def test_windows_line_ends_count_once() -> None:
    assert key_lines("a = 1\r\n\r\nb = 2\r\n") == {("a",): 1, ("b",): 3}


NAMES = st.text("ab.\"' #=[]{}é\n\\", max_size=4)
SCALARS = (
    st.integers()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.text("a\"'\\#[]{}=,\n", max_size=6)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def inline(value: object, spaced: bool) -> str:
    """A value in one expression; arrays over several lines if so wished."""
    gap = '\n  # , ] " remark\n  ' if spaced else ""
    if isinstance(value, dict):
        pairs = (f"{quoted_key(k)} = {inline(v, False)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + gap + f",{gap}".join(inline(v, spaced) for v in value) + gap + "]"
    if isinstance(value, str):
        return quoted_text(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


@given(
    st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), max_size=4), st.booleans()
)
def test_scanner_finds_what_the_parser_reads(
    tables: dict[str, dict[str, object]], spaced: bool
) -> None:
    text = ""
    expected: dict[KeyPath, int] = {}
    for name, pairs in tables.items():
        text += f"[{quoted_key(name)}] # remark\n"
        expected[name,] = text.count("\n")
        for key, value in pairs.items():
            expected[name, key] = text.count("\n") + 1
            text += f"{quoted_key(key)} = {inline(value, spaced)}\n\n"
    lines = key_lines(text)
    assert set(lines) == paths_of(tomllib.loads(text))
    assert {path: lines[path] for path in expected} == expected


@given(st.text("ab=[]{}\"'#.,\\\n 1", max_size=40))
def test_text_that_is_no_toml_is_scanned_to_its_end(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in key_lines(text).values())


def test_path_is_written_like_a_key() -> None:
    assert key_text(("sites", "a b", "brokers", 2)) == 'sites."a b".brokers[2]'


@given(st.text(st.characters(codec="utf-8")))
def test_quoted_text_reads_back(text: str) -> None:
    assert tomllib.loads(f"{quoted_key(text)} = {quoted_text(text)}") == {text: text}
