"""The house rules hold in this repository, and every rule can object.

For each rule two tests: the rule is kept by every file it governs, and it finds the fault in a
sample that breaks it. A rule that cannot object protects nothing.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path

import pytest

import anabranch
from tests import tidy_rules as rules

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "anabranch"
OURS = ("src", "evaluation", "tests", "scripts")
Rule = Callable[[str], Iterator[str]]


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def pages() -> list[Path]:
    found = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md"))
    return sorted(found)


def scripts() -> list[Path]:
    found = [*(ROOT / "scripts").iterdir(), *(ROOT / ".ci").iterdir()]
    return sorted(path for path in found if path.is_file())


def everything() -> list[Path]:
    own = [ROOT / "pyproject.toml", ROOT / "constraints.txt", ROOT / "NOTICE"]
    hosted = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    return [*python_files("src", "evaluation", "tests"), *scripts(), *pages(), *own, *hosted]


def problems(rule: Rule, paths: Iterable[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in paths
        for problem in rule(path.read_text(encoding="utf-8"))
    ]


def function_of(lines: int, decorator: str = "") -> str:
    return f"{decorator}\ndef long():\n" + "    pass\n" * (lines - 1)


# -- the rules are kept


def test_there_is_something_to_judge() -> None:
    assert len(python_files("src")) > 5
    assert len(python_files("evaluation")) > 5
    assert len(pages()) > 5
    assert len(scripts()) > 3


def test_modules_are_short() -> None:
    assert problems(rules.long_module, python_files(*OURS)) == []


def test_modules_that_claim_to_hold_kernels_hold_only_kernels() -> None:
    assert problems(rules.false_kernel_module, python_files("src", "evaluation")) == []


def test_functions_are_short() -> None:
    assert problems(rules.long_functions, python_files(*OURS)) == []


def test_lines_are_short() -> None:
    assert (
        problems(rules.long_lines, [*python_files("src", "evaluation", "tests"), *scripts()]) == []
    )


def test_modules_open_with_prose() -> None:
    assert problems(rules.missing_header, python_files("src", "evaluation", "scripts")) == []


def test_nothing_names_a_path_outside_the_repository() -> None:
    assert problems(rules.paths_outside, everything()) == []


def test_no_marker_is_left_over() -> None:
    assert problems(rules.leftover_markers, everything()) == []


def test_no_code_is_left_unwritten() -> None:
    assert problems(rules.unwritten_code, python_files("src", "evaluation", "scripts")) == []


def test_modules_are_named_for_what_they_hold() -> None:
    names = [path.relative_to(ROOT).as_posix() for path in python_files(*OURS)]
    assert [problem for name in names for problem in rules.vague_name(name)] == []


def test_the_core_is_pure() -> None:
    assert problems(rules.impure_core, python_files("src/anabranch/core")) == []


def test_records_of_edges_and_join_points_are_written_by_the_module_that_defines_them() -> None:
    core = "src/anabranch/core"
    folders = (f"{core}/edge", f"{core}/patterns/join_points")
    assert problems(rules.foreign_writes, python_files(*folders)) == []


def test_only_the_command_prints() -> None:
    quiet = [path for path in python_files("src") if SOURCE / "cli" not in path.parents]
    assert problems(rules.prints, quiet) == []


def test_links_lead_to_files() -> None:
    found = [(page, p) for page in pages() for p in rules.dead_links(page.read_text(), page.parent)]
    assert found == []


def test_tests_that_the_pages_name_exist() -> None:
    found = [(page, p) for page in pages() for p in rules.missing_tests(page.read_text(), ROOT)]
    assert found == []


def test_constraints_are_exact_pins_without_an_address() -> None:
    assert problems(rules.loose_pins, [ROOT / "constraints.txt"]) == []


def test_every_supported_python_is_tested_where_the_project_is_hosted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = "Programming Language :: Python :: "
    supported = [each.removeprefix(named) for each in project["classifiers"] if named in each]
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert f"python: {json.dumps(supported)}\n" in workflow
    assert "- run: scripts/test\n" in workflow


def test_the_newest_version_has_a_dated_entry_in_the_changelog() -> None:
    newest = re.search(r"^## \[(\d.*)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == anabranch.__version__
    date.fromisoformat(newest[2])


def test_readme_fits_on_one_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= rules.README_LINES_MAX


# -- the rules can object


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        (rules.long_module, "x = 1\n" * 801),
        (rules.false_kernel_module, rules.KERNEL_MODULE + "\ndef plain(): ...\n"),
        (rules.long_functions, function_of(71)),
        (rules.long_functions, function_of(71, "@lru_cache")),
        (rules.long_lines, "x" * 101),
        (rules.missing_header, "x = 1"),
        (rules.missing_header, '"""Filters."""\nx = 1'),
        (rules.paths_outside, "open('/t" + "mp/x')"),
        (rules.paths_outside, "see /wo" + "rk/main"),
        (rules.paths_outside, "see ../sha" + "red/spec"),
        (rules.leftover_markers, "# TO" + "DO: later"),
        (rules.leftover_markers, "FIX" + "ME"),
        (rules.unwritten_code, "def f():\n    raise NotImplemented" + "Error('x')"),
        (rules.vague_name, "src/anabranch/model/utils.py"),
        (rules.vague_name, "src/anabranch/common/name.py"),
        (rules.vague_name, "src/anabranch/event_helpers.py"),
        (rules.impure_core, "import time"),
        (rules.impure_core, "from random import choice"),
        (rules.impure_core, "import os.path"),
        (rules.impure_core, "async def f(): ..."),
        (rules.foreign_writes, "position.acked = 5"),
        (rules.foreign_writes, "position.acked += 5"),
        (rules.foreign_writes, "self._state.position.acked: int = 5"),
        (rules.foreign_writes, "del self._state.positions[name]"),
        (rules.foreign_writes, "session.names[name] = subscription"),
        (rules.foreign_writes, "for stream.position in positions: ..."),
        (rules.foreign_writes, "position.batch.append(event)"),
        (rules.prints, "def f():\n    print(1)"),
        (rules.loose_pins, "numpy>=2"),
        (rules.loose_pins, "--index-url https://example.org/simple"),
        (rules.loose_pins, "numpy @ https://example.org/numpy.whl"),
    ],
)
def test_rule_objects_to_a_bad_sample(rule: Rule, bad: str) -> None:
    assert len(list(rule(bad))) == 1


@pytest.mark.parametrize(
    ("rule", "good"),
    [
        (rules.long_module, rules.KERNEL_MODULE + "\n" + "x = 1\n" * 801),
        (rules.false_kernel_module, rules.KERNEL_MODULE + "\n@njit(cache=True)\ndef f(): ...\n"),
        (rules.long_functions, function_of(70)),
        (rules.long_functions, function_of(71, "@njit")),
        (rules.long_functions, function_of(71, "@numba.njit(cache=True)")),
        (rules.long_lines, "x" * 100),
        (rules.missing_header, ""),
        (rules.paths_outside, "a/work/b, ./home/x and https://example.org/root"),
        (rules.leftover_markers, "a method and a mastodon"),
        (rules.vague_name, "src/anabranch/model/filter.py"),
        (rules.impure_core, "import math"),
        (rules.foreign_writes, "self.position.advance(5)\nself._late.append(position)"),
        (rules.foreign_writes, "def f(self):\n    self.acked = 1\n    other.acked = 2"),
        (rules.foreign_writes, "class Position:\n    acked: int\nposition.acked = 5"),
        (rules.prints, "if __name__ == '__main__':\n    print(1)"),
        (rules.loose_pins, "# a remark\n\nnumpy==2.4.6"),
    ],
)
def test_rule_leaves_a_good_sample_alone(rule: Rule, good: str) -> None:
    assert list(rule(good)) == []


def test_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "here.md").touch()
    text = "[a](here.md#part) [b](gone.md) [c](https://example.org) [d](#part) `[e](code.md)`"
    assert list(rules.dead_links(text, tmp_path)) == ["the link to gone.md leads nowhere"]


def test_missing_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_one():\n    pass\n")
    text = "`tests/test_a.py::test_one` `tests/test_a.py::test_two` `tests/test_b.py`"
    found = list(rules.missing_tests(text, tmp_path))
    assert found == ["tests/test_a.py holds no test_two", "tests/test_b.py does not exist"]
