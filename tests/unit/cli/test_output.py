"""What is printed for people reads like language."""

import io

import pytest
from rich.console import Console

from anabranch.cli.output import counted
from evaluation.log import LogReport, Replay, print_report


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 events"), (1, "1 event"), (2, "2 events"), (2_000, "2,000 events")]
)
def test_things_are_counted_in_the_singular_and_the_plural(count: int, text: str) -> None:
    assert counted(count, "event") == text


@pytest.mark.parametrize(("passes", "text"), [(1, "best of 1 pass"), (2, "best of 2 passes")])
def test_a_bench_of_one_pass_says_so(passes: int, text: str) -> None:
    replay = Replay(store_per_s=1.0, sqlite_per_s=1.0)
    report = LogReport(
        record_bytes=100,
        passes=passes,
        sqlite="3",
        system="here",
        groups=[],
        replay=replay,
        bars=[],
    )
    out = io.StringIO()
    print_report(report, Console(file=out, width=120))
    assert text in {line.strip().rpartition(", ")[2] for line in out.getvalue().splitlines()}
