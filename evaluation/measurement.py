"""What all measurements share: clocks, bars, and the check of answers.

Time
----
Timing: CPU time of the calling thread, and what to make of several measurements.

1. Time is CPU time of this thread. Another process on the machine then costs cache misses and
   nothing else, and the figures of a shared machine are those of a quiet one, or nearly.
2. What can be repeated is repeated and the quickest pass counts: noise only ever adds. Bars are
   judged by that. Where a pass is long, the sum of the quickest passes of its slices stands beside
   it: on a shared machine no pass of many milliseconds goes undisturbed from end to end.
3. What cannot be repeated (an update happens once) is timed in many pieces; the median stands for
   the usual piece and the best for the undisturbed one.
4. The clock itself costs a fraction of a microsecond per reading; `reading_ns` says how much, and
   figures of that order are taken over groups of calls.
5. The garbage collector stays on: users have it on.

Answers
-------
Whether an index says what the workload knows to be right.

A fast wrong answer is worth nothing, so every benchmark compares some answers of every engine and
every path (single, batch, encoded batch) with the workload's own, and stops at a difference.

Bars
----
A bar was promised, a goal is aimed at. A missed one is reported and does not make a command fail.
"""

import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from rich.table import Table
from rich.text import Text

from anabranch.model.errors import AnabranchError

# -- time -----------------------------------------------------------------------------------------


cpu_ns = time.thread_time_ns


class Rates(msgspec.Struct, frozen=True):
    """How often per second of CPU time, over several chunks."""

    median_per_s: float
    best_per_s: float


def least_pass_ns(
    work: Callable[[], object], *, budget_s: float = 2.0, passes_min: int = 3, passes_max: int = 200
) -> int:
    """CPU time of the quickest of repeated calls of `work`, repeated for about `budget_s`."""
    least = 2**63
    deadline = time.perf_counter() + budget_s
    for done in range(passes_max):
        if done >= passes_min and time.perf_counter() >= deadline:
            break
        least = min(least, elapsed_ns(work))
    return least


def least_slices_ns(
    works: Sequence[Callable[[], object]], *, budget_s: float = 3.0, passes_min: int = 3
) -> int:
    """CPU time of all slices together, each counted with its quickest pass."""
    least = [2**63] * len(works)
    deadline = time.perf_counter() + budget_s
    done = 0
    while done < passes_min or time.perf_counter() < deadline:
        for number, work in enumerate(works):
            least[number] = min(least[number], elapsed_ns(work))
        done += 1
    return sum(least)


def elapsed_ns(work: Callable[[], object]) -> int:
    """CPU time of one call of `work`."""
    begin = cpu_ns()
    work()
    return cpu_ns() - begin


def rates(chunk_size: int, durations_ns: Sequence[int]) -> Rates:
    """Rates of chunks of `chunk_size` operations that took these times."""
    return Rates(
        median_per_s=per_second(chunk_size, percentile(durations_ns, 0.5)),
        best_per_s=per_second(chunk_size, min(durations_ns)),
    )


def per_second(count: int, duration_ns: float) -> float:
    """How many per second, if `count` took that long."""
    return count * 1e9 / max(duration_ns, 1)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def reading_ns() -> float:
    """What two readings of the clock around nothing say has passed, in the median."""
    return percentile([elapsed_ns(int) for _ in range(1_000)], 0.5)


# -- answers --------------------------------------------------------------------------------------


#: Events whose answers are compared.
VERIFIED_EVENTS = 10


class WrongAnswerError(AnabranchError):
    """The product and the workload disagree about which subscriptions match."""


def check_answers(
    what: str, answers: Iterable[Iterable[object]], expected: Sequence[Sequence[int]]
) -> None:
    """Raise unless every answer holds exactly the expected ids, each once, in any order."""
    for place, (answer, right) in enumerate(zip(answers, expected, strict=True)):
        found = list(answer)
        if len(found) == len(right) and set(found) == set(right):
            continue
        missing = sorted(set(right) - set(found))[:3]
        surplus = sorted(map(str, set(found) - set(right)))[:3]
        raise WrongAnswerError(
            f"{what}: event {place} matched {len(found)} subscriptions instead of {len(right)}"
            f" (missing, for example: {missing}; not matching: {surplus}); rerun with the same"
            " seed to reproduce it"
        )


# -- memory ---------------------------------------------------------------------------------------


_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Resident bytes after a garbage collection; None where the system does not say."""
    gc.collect()
    if not _STATM.exists():
        return None
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- bars -----------------------------------------------------------------------------------------


class Verdict(msgspec.Struct, frozen=True):
    """One bar, held against what was measured."""

    name: str
    measured: float
    relation: Literal["≤", "≥"]
    limit: float
    met: bool
    #: A goal has no sketch behind it: the distance is reported, nothing more was promised.
    goal: bool = False


def at_most(name: str, measured: float, limit: float, *, goal: bool = False) -> Verdict:
    """A bar from above."""
    return Verdict(name, measured, "≤", limit, measured <= limit, goal)


def at_least(name: str, measured: float, limit: float, *, goal: bool = False) -> Verdict:
    """A bar from below."""
    return Verdict(name, measured, "≥", limit, measured >= limit, goal)


# -- tables ---------------------------------------------------------------------------------------


def verdicts_table(verdicts: Iterable[Verdict]) -> Table:
    """What was promised, what came out."""
    table = Table("bar", "measured", "limit", "", title="Bars", title_justify="left")
    for verdict in verdicts:
        kind = " (goal)" if verdict.goal else ""
        table.add_row(
            verdict.name + kind,
            f"{verdict.measured:,.2f}",
            f"{verdict.relation} {verdict.limit:,}",
            _judgement(verdict),
        )
    return table


def _judgement(verdict: Verdict) -> Text:
    if verdict.met:
        return Text("met", style="green")
    return Text(f"missed: {verdict.measured / verdict.limit:.2f} times the limit", style="red")
