"""Every scenario file prints exactly what it says. `pytest --rewrite` writes what it prints."""

from pathlib import Path

import pytest

from tests.scenario_runner import replayed

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_has_the_trace_it_shows(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text(encoding="utf-8")
    now = replayed(text)
    if pytestconfig.getoption("--rewrite"):
        path.write_text(now, encoding="utf-8")
    else:
        assert now == text


def test_wrong_trace_is_noticed() -> None:
    text = (FOLDER / "example_4_01_first_subscription.txt").read_text(encoding="utf-8")
    wrong = text.replace("the next version is 1.2", "the next version is 1.3")
    assert wrong != text
    assert replayed(wrong) == text
