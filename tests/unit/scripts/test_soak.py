"""The soak runner resumes, retries what failed, and writes what it did."""

import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from scripts import soak, soak_jobs
from tests.process import memory_attack, step_attack

QUIET = Console(quiet=True)
FOREVER = float("inf")


def job(name: str = "counting", program: str = "print('7 done')", chunks: int = 3) -> soak_jobs.Job:
    return soak_jobs.Job(name, ("-c", program, "{seed}"), chunks, "things", r"(\d+) done")


def state_in(folder: Path, commit: str = "abc") -> soak.State:
    return soak.State(folder / "state.json", commit)


def test_all_chunks_run_and_are_counted(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    assert soak.run([job()], state, 2, FOREVER, QUIET)
    assert [chunk.count for chunk in state.of(job())] == [7, 7, 7]


def test_seed_is_the_number_of_the_chunk(tmp_path: Path) -> None:
    echo = job(program="import sys; print(sys.argv[1], 'done')")
    state = state_in(tmp_path)
    soak.run([echo], state, 1, FOREVER, QUIET)
    assert [chunk.count for chunk in state.of(echo)] == [0, 1, 2]


def test_passed_chunks_are_not_run_again(tmp_path: Path) -> None:
    first = state_in(tmp_path)
    first.record(job(), 1, soak.Chunk(passed=True, count=100, seconds=1.0))
    again = state_in(tmp_path)
    assert again.missing(job()) == [0, 2]
    soak.run([job()], again, 2, FOREVER, QUIET)
    assert sorted(chunk.count for chunk in state_in(tmp_path).of(job())) == [7, 7, 100]


def test_failed_chunks_are_run_again_and_their_output_is_kept(tmp_path: Path) -> None:
    broken = job(program="print('broken'); raise SystemExit(3)", chunks=1)
    state = state_in(tmp_path)
    assert not soak.run([broken], state, 1, FOREVER, QUIET)
    assert (tmp_path / "logs" / "counting-0.txt").read_text() == "broken\n"
    assert state_in(tmp_path).missing(broken) == [0]


def test_state_of_another_commit_is_left_alone(tmp_path: Path) -> None:
    state_in(tmp_path, "old").record(job(), 0, soak.Chunk(passed=True, count=1, seconds=1.0))
    state_in(tmp_path, "new").record(job(), 1, soak.Chunk(passed=True, count=1, seconds=1.0))
    assert state_in(tmp_path, "old").missing(job()) == [1, 2]
    assert state_in(tmp_path, "new").missing(job()) == [0, 2]


def test_nothing_is_started_after_the_time_is_over(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    assert not soak.run([job()], state, 2, time.monotonic() - 1, QUIET)
    assert state.of(job()) == []


def test_jobs_that_measure_run_alone_and_last(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    program = "import sys; open(sys.argv[2], 'a').write(sys.argv[3])"
    timed = soak_jobs.Job("b", ("-c", program, "-", str(trace), "b"), 1, "", "x", measures=True)
    other = soak_jobs.Job("a", ("-c", program, "-", str(trace), "a"), 2, "", "x")
    soak.run([timed, other], state_in(tmp_path), 2, FOREVER, QUIET)
    assert trace.read_text() == "aab"


def test_measurements_are_kept_in_the_results(tmp_path: Path) -> None:
    program = "import sys; print('{\"subscriptions\": 5}'); print('noise', file=sys.stderr)"
    timed = soak_jobs.Job(
        "t", ("-c", program), 1, "filters", r'"subscriptions": (\d+)', measures=True
    )
    state = state_in(tmp_path)
    soak.run([timed], state, 1, FOREVER, QUIET)
    page = soak.write_results([timed], state_in(tmp_path), tmp_path)
    data = json.loads(page.with_suffix(".json").read_text())
    assert data["jobs"][0]["count"] == 5
    assert data["jobs"][0]["measured"] == [{"subscriptions": 5}]


def test_measurements_are_on_the_page_with_bytes_in_mebibytes(tmp_path: Path) -> None:
    program = 'print(\'{"attack": "held", "cost_bytes": 52428800, "lost": 0}\')'
    attack = soak_jobs.Job("held", ("-c", program), 1, "events", r"(0)", measures=True)
    soak.run([attack], state_in(tmp_path), 1, FOREVER, QUIET)
    page = soak.write_results([attack], state_in(tmp_path), tmp_path).read_text()
    assert "held: cost 50 MiB, lost 0." in page


def test_what_chunks_print_is_put_together_by_what_it_is(tmp_path: Path) -> None:
    printed = [
        {"seed": 1, "crashes": 5, "brokers_max": 25, "seeds_per_cpu_s": 2.0, "named": {}},
        {"seed": 2, "crashes": 6, "brokers_max": 32, "seeds_per_cpu_s": 3.0, "named": {}},
        {"seed": 3, "crashes": 7, "brokers_max": 30, "seeds_per_cpu_s": 9.5, "named": {}},
    ]
    summing = soak_jobs.Job("s", (), 3, "seeds", "x", adds_up=True)
    state = state_in(tmp_path)
    for seed, document in enumerate(printed):
        chunk = soak.Chunk(passed=True, count=1, seconds=1.0, measured=json.dumps(document))
        state.record(summing, seed, chunk)
    page = soak.write_results([summing], state, tmp_path)
    assert "s in all: crashes 18, brokers_max 32, seeds_per_cpu_s 3.0." in page.read_text()


def test_jobs_in_which_too_little_happened_are_named(tmp_path: Path) -> None:
    floors = (("crashes", 10), ("deliveries", 5), ("matches", 1))
    busy = soak_jobs.Job("s", (), 2, "seeds", "x", adds_up=True, floors=floors)
    state = state_in(tmp_path)
    assert soak.lacking(busy, state.of(busy)) == []
    for seed, (crashes, deliveries) in enumerate([(19, 4), (1, 5)]):
        document = json.dumps({"crashes": crashes, "deliveries": deliveries})
        state.record(busy, seed, soak.Chunk(passed=True, count=1, seconds=1.0, measured=document))
    state.record(busy, 2, soak.Chunk(passed=False, count=0, seconds=1.0, measured="broken"))
    wanting = soak.lacking(busy, state.of(busy))
    assert wanting == [
        "s: deliveries 9, which should be 10 at least",
        "s: matches 0, which should be 2 at least",
    ]
    page = soak.write_results([busy], state, tmp_path).read_text()
    assert "Too little of s: deliveries 9, which should be 10 at least." in page


@pytest.mark.parametrize(("name", "routing"), [("kills", "tree"), ("kills-mesh", "mesh")])
def test_the_kills_of_a_soak_run_are_fifty_and_its_events_two_hundred_thousand(
    name: str, routing: str
) -> None:
    (kills,) = (each for each in soak_jobs.jobs(soak.ROOT) if each.name == f"process/{name}")
    words = kills.arguments
    assert ("mesh" in words) == (routing == "mesh")
    per_chunk = [int(words[words.index(option) + 1]) for option in ("--kills", "--events")]
    assert kills.chunks * per_chunk[0] >= 50
    assert kills.chunks * per_chunk[1] >= 200_000


def test_every_attack_on_memory_is_in_a_soak_run() -> None:
    commands = [each.arguments for each in soak_jobs.jobs(soak.ROOT) if "/memory-" in each.name]
    assert [words[words.index("--attack") + 1] for words in commands] == list(memory_attack.ATTACKS)
    assert all(words[words.index("--scale") + 1] == "1" for words in commands)


def test_results_hold_commit_counts_and_kind_of_machine(tmp_path: Path) -> None:
    state = state_in(tmp_path, "abc123")
    state.record(job(), 0, soak.Chunk(passed=True, count=5, seconds=1.5))
    state.record(job(), 1, soak.Chunk(passed=False, count=9, seconds=0.5))
    page = soak.write_results([job()], state, tmp_path / "results")
    assert page.name.endswith("-abc123-soak.md")
    assert "| counting | 1 of 3 | 1 | 5 things | 2.0 |" in page.read_text()
    data = json.loads(page.with_suffix(".json").read_text())
    assert data["commit"] == "abc123"
    assert data["jobs"][0]["count"] == 5
    assert {"processor", "cores", "memory", "python", "numba"} <= set(data["machine"])


def test_machine_facts_do_not_name_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "host-of-somebody")
    monkeypatch.setenv("HOSTNAME", "host-of-somebody")
    assert "host-of-somebody" not in str(soak.machine())


def test_counts_are_summed_over_the_whole_output() -> None:
    statistics = "- 10 passing, 0 failing, 3 invalid test cases\nand\n- 32 passing, 1 failing"
    assert soak.count_in(statistics, soak_jobs.EXAMPLES_PASSED) == 42


def test_every_file_of_properties_is_a_job() -> None:
    names = {one.arguments[5] for one in soak_jobs.jobs(soak.ROOT)}
    found = {p.relative_to(soak.ROOT).as_posix() for p in soak.ROOT.glob("tests/property/test_*")}
    assert found <= names


def test_every_attack_of_the_attack_programs_is_a_job() -> None:
    names = {each.name for each in soak_jobs.jobs(soak.ROOT)}
    assert {f"process/steps-{attack}" for attack in step_attack.ATTACKS} <= names
    assert {f"process/memory-{attack}" for attack in memory_attack.ATTACKS} <= names
