"""Runs every large count of the project in chunks, and can be stopped at any time.

A *job* is a command and the number of chunks wanted of it (`soak_jobs`); a chunk is one run of the
command with its own seed. Chunks run on all cores at once, except those of jobs that measure time,
which run alone. Rules:

1. A chunk that passed is written to the state file at once and never run again for this commit.
2. A chunk that failed, or was interrupted, runs again next time. The output of a failed chunk is
   kept beside the state.
3. State belongs to a commit. Uncommitted changes make a state of their own, named by their digest.
4. Jobs may have floors: if so little happened in all their chunks that they prove nothing, the run
   fails and says of what there was too little.
5. Results name the commit and the kind of machine, never the machine.

State kept: `.soak/state.json`. Losing it costs computing time only.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.soak_jobs import Job, jobs

_MIB = 1024 * 1024
ROOT = Path(__file__).resolve().parent.parent


class Chunk(msgspec.Struct, frozen=True):
    """What one run of a job gave."""

    passed: bool
    count: int
    seconds: float
    #: The measurements, as JSON; "" if the job makes none.
    measured: str = ""


#: By commit, job and seed.
Chunks = dict[str, dict[str, dict[int, Chunk]]]


class State:
    """The chunks done of one commit, and the file that holds those of all commits."""

    def __init__(self, path: Path, commit: str) -> None:
        self.path = path
        self.commit = commit
        self._stored: Chunks = {}
        if path.exists():
            self._stored = msgspec.json.decode(path.read_bytes(), type=Chunks)
        self._done = self._stored.setdefault(commit, {})

    def record(self, job: Job, seed: int, chunk: Chunk) -> None:
        """Remembers a chunk, in memory and in the file."""
        self._done.setdefault(job.name, {})[seed] = chunk
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(self._stored), indent=1))
        fresh.replace(self.path)

    def of(self, job: Job) -> list[Chunk]:
        """The chunks of `job` that were run."""
        return list(self._done.get(job.name, {}).values())

    def missing(self, job: Job) -> list[int]:
        """The seeds of `job` that have yet to pass, ascending."""
        chunks = self._done.get(job.name, {})
        return [s for s in range(job.chunks) if s not in chunks or not chunks[s].passed]


def run_chunk(job: Job, seed: int, logs: Path) -> Chunk:
    """Runs one chunk to its end; what a failing one printed is kept in `logs`."""
    arguments = [argument.replace("{seed}", str(seed)) for argument in job.arguments]
    environment = {**os.environ, "ANABRANCH_HYPOTHESIS_PROFILE": "soak"}
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = round(time.monotonic() - started, 1)
    if ended.returncode != 0:
        logs.mkdir(parents=True, exist_ok=True)
        (logs / f"{job.name.replace('/', '-')}-{seed}.txt").write_text(ended.stdout + ended.stderr)
    measured = ended.stdout if job.measures or job.adds_up else ""
    return Chunk(ended.returncode == 0, count_in(ended.stdout, job.counted), seconds, measured)


def count_in(output: str, counted: str) -> int:
    """The sum of the numbers that `counted` finds in `output`."""
    return sum(int(number) for number in re.findall(counted, output))


def run(table: list[Job], state: State, processes: int, until: float, console: Console) -> bool:
    """Runs what is missing until `until` (monotonic seconds); whether it was all there was."""
    logs = state.path.parent / "logs"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bars = {
            job.name: progress.add_task(
                job.name, total=job.chunks, completed=job.chunks - len(state.missing(job))
            )
            for job in table
        }
        for group, width in (_counting(table), processes), (_measuring(table), 1):
            for job, seed, chunk in _chunks(group, state, width, until, logs):
                state.record(job, seed, chunk)
                if chunk.passed:
                    progress.advance(bars[job.name])
                else:
                    progress.print(f"failed: {job.name} with seed {seed}; see {logs}")
    return all(not state.missing(job) for job in table)


def _counting(table: list[Job]) -> list[Job]:
    return [job for job in table if not job.measures]


def _measuring(table: list[Job]) -> list[Job]:
    return [job for job in table if job.measures]


def _chunks(
    table: list[Job], state: State, width: int, until: float, logs: Path
) -> Iterator[tuple[Job, int, Chunk]]:
    """Runs missing chunks, `width` at a time, and yields each as it ends."""
    waiting = [(job, seed) for job in table for seed in state.missing(job)]
    waiting.reverse()
    running: dict[Future[Chunk], tuple[Job, int]] = {}
    with ThreadPoolExecutor(width) as pool:
        while waiting or running:
            while waiting and len(running) < width and time.monotonic() < until:
                job, seed = waiting.pop()
                running[pool.submit(run_chunk, job, seed, logs)] = (job, seed)
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, seed = running.pop(future)
                yield job, seed, future.result()


def commit_id() -> str:
    """The commit that is checked out, with a digest of what was changed since."""
    head = _git("rev-parse", "--short=12", "HEAD").strip()
    if not head:
        return "uncommitted"
    changes = _git("diff", "HEAD", "--", ".", ":!docs/results")
    digest = hashlib.sha256(changes.encode()).hexdigest()[:8]
    return f"{head}-changed-{digest}" if changes else head


def _git(*arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return ended.stdout if ended.returncode == 0 else ""


def machine() -> dict[str, str]:
    """What kind of machine this is; nothing that would name it."""
    cpus = re.findall(r"^model name\s*: (.*)$", _file("/proc/cpuinfo"), re.MULTILINE)
    memory = re.findall(r"^MemTotal:\s*(\d+) kB", _file("/proc/meminfo"), re.MULTILINE)
    return {
        "processor": cpus[0] if cpus else platform.machine(),
        "cores": str(os.cpu_count() or 1),
        "memory": f"{int(memory[0]) / 2**20:.0f} GiB" if memory else "unknown",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("msgspec", "numpy", "numba", "hypothesis")},
    }


def _file(name: str) -> str:
    path = Path(name)
    return path.read_text() if path.exists() else ""


def results(table: list[Job], state: State, date: str) -> dict[str, object]:
    """Everything a reader of the results wants to know, ready for JSON."""
    return {
        "commit": state.commit,
        "date": date,
        "machine": machine(),
        "jobs": [_result(job, state) for job in table],
    }


def _result(job: Job, state: State) -> dict[str, object]:
    chunks = state.of(job)
    return {
        "name": job.name,
        "chunks_wanted": job.chunks,
        "chunks_passed": sum(chunk.passed for chunk in chunks),
        "chunks_failed": sum(not chunk.passed for chunk in chunks),
        "unit": job.unit,
        "count": sum(chunk.count for chunk in chunks if chunk.passed),
        "seconds": round(sum(chunk.seconds for chunk in chunks), 1),
        "measured": _measured(job, chunks),
    }


def _measured(job: Job, chunks: list[Chunk]) -> list[dict[str, float]]:
    """What the chunks printed; of jobs that add up, all of them together, without their seeds."""
    printed = [json.loads(chunk.measured) for chunk in chunks if chunk.passed and chunk.measured]
    if not job.adds_up:
        return printed
    columns: dict[str, list[float]] = {}
    for document in printed:
        for name, value in document.items():
            if isinstance(value, int | float) and name != "seed":
                columns.setdefault(name, []).append(value)
    return [{name: _together(name, values) for name, values in columns.items()}]


def _together(name: str, values: list[float]) -> float:
    """Rates have a median, maxima a maximum, and everything else a sum."""
    if "_per_" in name:
        return round(statistics.median(values), 2)
    return max(values) if name.endswith("_max") else round(sum(values), 1)


def lacking(job: Job, chunks: list[Chunk]) -> list[str]:
    """What there was too little of in the chunks that passed, in words."""
    passed = [chunk for chunk in chunks if chunk.passed]
    if not job.floors or not passed:
        return []
    sums = _measured(job, passed)[0]
    found = []
    for name, per_chunk in job.floors:
        seen, floor = sums.get(name, 0), per_chunk * len(passed)
        if seen < floor:
            found.append(f"{job.name}: {name} {seen:,}, which should be {floor:,} at least")
    return found


def as_markdown(table: list[Job], state: State, date: str) -> str:
    """The same results as a page."""
    lines = [f"# Soak run of {date}", "", f"Commit `{state.commit}`.", ""]
    lines += ["| machine | |", "|---|---|"]
    lines += [f"| {name} | {fact} |" for name, fact in machine().items()]
    lines += ["", "| job | chunks passed | failed | count | seconds |", "|---|---|---|---|---|"]
    for job in table:
        row = _result(job, state)
        lines.append(
            f"| {job.name} | {row['chunks_passed']} of {job.chunks} | {row['chunks_failed']} "
            f"| {row['count']:,} {job.unit} | {row['seconds']:,} |"
        )
    for job in table:
        if job.adds_up:
            sums = _measured(job, state.of(job))[0]
            lines += ["", f"{job.name} in all: {_in_words(sums)}."]
        elif job.measures:
            found = _measured(job, state.of(job))
            lines += [line for each in found for line in ("", f"{job.name}: {_in_words(each)}.")]
        for text in lacking(job, state.of(job)):
            lines += ["", f"Too little of {text}."]
    return "\n".join(lines) + "\n"


def _in_words(figures: Mapping[str, object]) -> str:
    """All plain numbers, with their names; bytes in MiB."""
    numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    return ", ".join(
        f"{name.removesuffix('_bytes')} {value / _MIB:,.0f} MiB"
        if name.endswith("_bytes")
        else f"{name} {value:,}"
        for name, value in numbers.items()
    )


def write_results(table: list[Job], state: State, directory: Path) -> Path:
    """Writes both forms and returns the path of the page."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / f"{date}-{state.commit}-soak.md"
    page.write_text(as_markdown(table, state, date))
    page.with_suffix(".json").write_text(json.dumps(results(table, state, date), indent=1) + "\n")
    return page


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="show the jobs and what is done")
    parser.add_argument("--only", metavar="TEXT", default="", help="jobs whose name contains TEXT")
    parser.add_argument("--chunks", type=int, help="chunks per job, instead of each job's own")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Job]:
    """The jobs the options ask for."""
    table = [job for job in jobs(ROOT) if options.only in job.name]
    if options.chunks is not None:
        table = [replace(job, chunks=options.chunks) for job in table]
    return table


def main() -> int:
    options = arguments()
    console = Console()
    table = chosen(options)
    if not table:
        console.print(f"scripts/soak: error: no job has {options.only!r} in its name; see --list")
        return 2
    state = State(ROOT / ".soak" / "state.json", commit_id())
    if options.list:
        for job in table:
            console.print(f"{job.name}: {job.chunks - len(state.missing(job))} of {job.chunks}")
        return 0
    try:
        complete = run(
            table, state, options.processes, time.monotonic() + 60 * options.minutes, console
        )
    except KeyboardInterrupt:
        console.print("scripts/soak: stopped; run it again to go on from here")
        return 130
    # The page has all jobs that this commit has run so far, of earlier runs too.
    done = {job.name: job for job in jobs(ROOT) if state.of(job)} | {job.name: job for job in table}
    page = write_results(list(done.values()), state, ROOT / "docs" / "results")
    console.print(f"{'complete' if complete else 'not complete yet'}: {page.relative_to(ROOT)}")
    failed = any(not chunk.passed for job in table for chunk in state.of(job))
    short = [text for job in table for text in lacking(job, state.of(job))] if complete else []
    for text in short:
        console.print(f"too little of {text}")
    return 1 if failed or short else 0


if __name__ == "__main__":
    sys.exit(main())
