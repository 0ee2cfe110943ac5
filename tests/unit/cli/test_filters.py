"""`anabranch filter`: prints what it should, and fails in one line."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from anabranch.cli.main import app


def run(*arguments: str, text: str | bytes = "") -> Result:
    return CliRunner().invoke(app, ["filter", *arguments], input=text)


def error_of(result: Result) -> str:
    assert result.exit_code == 2
    assert result.stderr.startswith("anabranch: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


# -- check


def test_check_prints_canonical_text_and_normal_form() -> None:
    result = run("check", "price>=5 and ( a=1 or a=2 ) and x < y")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "filter: price >= 5 AND (a = 1 OR a = 2) AND x < y"
    assert "a: = 1 or = 2" in result.stdout
    assert "price: >= 5" in result.stdout
    assert "and x < y" in result.stdout


def test_check_says_that_a_contradiction_matches_nothing() -> None:
    assert "matches no event" in run("check", "a < 1 AND a > 2").stdout


def test_check_says_that_true_matches_every_event() -> None:
    assert "1. every event" in run("check", "TRUE").stdout


def test_check_json_holds_the_conjunctions() -> None:
    result = run("check", "a = 1 OR b LIKE 'x%'", "--json")
    assert msgspec.json.decode(result.stdout) == {
        "filter": "a = 1 OR b LIKE 'x%'",
        "conjunctions": [
            {"constraints": {"a": "= 1"}, "residue": []},
            {"constraints": {"b": "'x'…"}, "residue": []},
        ],
    }


def test_check_reads_the_tuple_form() -> None:
    result = run("check", "--tuples", "[class,eq,'STOCK'],[open,<,22]")
    assert result.stdout.splitlines()[0] == "filter: class = 'STOCK' AND open < 22"


def test_check_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "wanted.filter"
    path.write_text("a = 1\n  AND b = 'ü'\n", encoding="utf-8")
    assert run("check", "--file", str(path)).stdout.startswith("filter: a = 1 AND b = 'ü'\n")


def test_check_prints_text_that_looks_like_markup_as_it_is() -> None:
    assert "'[bold]x[/bold] :smile:'" in run("check", "a = '[bold]x[/bold] :smile:'").stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("price >", "position"),
        ("price => 5", "position"),
        ("name = 'open", "position"),
        ("", "TRUE"),
        ("a = 1\nAND AND", "position"),
    ],
)
def test_invalid_filter_is_told_with_the_place_and_a_caret_under_it(text: str, words: str) -> None:
    result = run("check", text)
    assert (result.exit_code, words in result.stderr) == (2, True)
    line, *marked = result.stderr.splitlines()
    assert line.startswith("anabranch: error: ")
    if text:
        shown, caret = marked
        assert shown == f"  {text}".replace("\n", " ")
        assert caret.strip() == "^"
        assert f"at position {caret.index('^') - 2}" in line
    else:
        assert marked == []


def test_check_wants_a_filter_or_a_file(tmp_path: Path) -> None:
    assert "either a filter or --file" in error_of(run("check"))
    assert "either a filter or --file" in error_of(run("check", "a = 1", "--file", "x"))


def test_missing_file_is_one_line_that_names_it(tmp_path: Path) -> None:
    assert "gone.filter: No such file" in error_of(
        run("check", "-f", str(tmp_path / "gone.filter"))
    )


def test_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"a = '\xff'")
    assert "not UTF-8 text, at byte 5" in error_of(run("check", "--file", str(path)))


# -- match


def test_match_prints_matching_events_as_they_were_given() -> None:
    result = run("match", "a > 1", "-e", '{"a":  2}', "-e", '{"a": 1}', "-e", '{"b": 2}')
    assert (result.exit_code, result.stdout) == (0, '{"a":  2}\n')


def test_match_reads_lines_and_skips_blank_ones() -> None:
    result = run("match", "a = 'ü'", text='{"a": "ü", "n": 1}\n\n{"a": "u"}\r\n{"a": "ü"}')
    assert result.stdout == '{"a": "ü", "n": 1}\n{"a": "ü"}\n'


def test_match_json_answers_for_every_event() -> None:
    result = run("match", "a", "--json", text='{"a": true}\n\n{"a": 1}\n')
    assert result.stdout == '{"event":1,"matches":true}\n{"event":3,"matches":false}\n'


def test_match_tells_integers_from_floats_beyond_53_bits() -> None:
    result = run("match", "a > 9007199254740992.0", "-e", '{"a": 9007199254740993}')
    assert result.stdout == '{"a": 9007199254740993}\n'


def test_match_reads_the_tuple_form() -> None:
    assert run("match", "--tuples", "[a,eq,1]", "-e", '{"a": 1}').stdout == '{"a": 1}\n'


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b"{", "event 2: not JSON: "),
        (b"[1]", "event 2: not a JSON object"),
        (b'{"a": {"b": 1}}', "event 2: attribute 'a': an object is not a value"),
        (b'{"a": NaN}', "event 2: not JSON: "),
        (b'{"a": "\xff"}', "event 2: attribute 'a': 'utf-8' codec"),
        (b'{"a": 1e400}', "event 2: attribute 'a': Number out of range"),
        (b"[" * 100_000, "event 2: not JSON: "),
        (b'{"a": null}', "event 2: attribute 'a': null is not a value"),
        (b'{"a": 9223372036854775808}', "event 2: attribute 'a' is an integer outside"),
    ],
)
def test_bad_event_is_one_line_with_its_number(event: bytes, words: str) -> None:
    result = run("match", "a = 1", text=b'{"a": 1}\n' + event + b"\n")
    assert words in error_of(result)
    assert result.stdout == '{"a": 1}\n'


# -- covers


def test_covers_answers_in_both_directions() -> None:
    result = run("covers", "price < 30", "price BETWEEN 10 AND 20")
    assert result.stdout == "a covers b: yes\nb covers a: no\nintersects: yes\n"


def test_covers_json() -> None:
    result = run("covers", "a < 1", "a > 2", "--json")
    document = msgspec.json.decode(result.stdout)
    assert document == {"a_covers_b": False, "b_covers_a": False, "intersects": False}
