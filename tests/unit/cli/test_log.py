"""`anabranch log`: shows what is there, finds what is wrong, repairs only what it is told to."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from anabranch.cli import log
from anabranch.cli.errors import CommandGroup
from anabranch.core.catalog_recovery import TABLE as SET_ASIDE
from anabranch.core.catalog_recovery import SetAsideRow
from anabranch.core.origin.log_tail import (
    BlankRecord,
    EventRecord,
    MarkRecord,
    encode_record,
)
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.store.catalog import Catalog
from anabranch.store.log import LogOptions
from anabranch.store.segment import HEAD_BYTES, scan
from anabranch.store.store import Store, StoreOptions
from tests.store_parts import Ears, quick_directory, segments_of

app = typer.Typer(cls=CommandGroup)
app.add_typer(log.app)
SECOND = 10**9
#: 2026-01-31T12:00:00Z
NOON = 1_769_860_800
OPTIONS = StoreOptions(log=LogOptions(segment_bytes=300, reserve_bytes=1_024))


@app.callback()
def options(debug: bool = False) -> None:
    """As the whole command has it."""


def record(tick: int) -> bytes:
    time_ns = (NOON + tick) * SECOND
    if tick == 3:
        return encode_record(BlankRecord(time_ns, EventId("p", 1, 3)))
    if tick == 5:
        return encode_record(MarkRecord(time_ns, {}))
    event = Event({"price": tick, "symbol": "X"}, payload=b"\xff", id=EventId("p", 1, tick))
    return encode_record(EventRecord(time_ns, encode_event(event)))


@pytest.fixture
def state() -> Iterator[Path]:
    with quick_directory() as place:
        ears = Ears()
        store = Store.open(place / "s", network="net", broker="b", options=OPTIONS, listener=ears)
        for tick in range(1, 10):
            store.append(tick, record(tick))
            store.sync(tick)
            ears.wait_synced(tick)
        store.close()
        assert len(segments_of(place / "s")) > 2
        yield place / "s"


def run(*arguments: str | Path, text: str = "") -> Result:
    return CliRunner().invoke(app, ["log", *map(str, arguments)], input=text)


def lines(*arguments: str | Path) -> list[dict[str, object]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return [msgspec.json.decode(line) for line in result.stdout.splitlines()]


def ticks(*arguments: str | Path) -> list[object]:
    return [line["tick"] for line in lines("cat", *arguments)]


def error_of(result: Result, code: int = 2) -> str:
    assert result.exit_code == code
    assert result.stderr.startswith("anabranch: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


# -- ls


def test_ls_shows_every_segment_with_ticks_times_and_sizes(state: Path) -> None:
    found = lines("ls", state)
    assert [segment["name"] for segment in found] == [path.name for path in segments_of(state)]
    assert (found[0]["first_tick"], found[-1]["last_tick"]) == (1, 9)
    assert found[0]["first_time_ns"] == (NOON + 1) * SECOND
    assert [segment["full"] for segment in found] == [True] * (len(found) - 1) + [False]
    table = run("ls", state).stdout
    assert "broker b of network net" in table
    assert "2026-01-31T12:00:01Z" in table
    assert found[0]["first_time"] == "2026-01-31T12:00:01.000000000Z"


def test_ls_of_what_is_no_log_is_refused(tmp_path: Path) -> None:
    assert "contains no log" in error_of(run("ls", tmp_path))
    assert "is not a directory" in error_of(run("ls", tmp_path / "missing"))


# -- cat


def test_cat_prints_events_and_with_all_every_tick(state: Path) -> None:
    assert ticks(state) == [1, 2, 4, 6, 7, 8, 9]
    assert ticks(state, "--all") == [*range(1, 10)]
    every = {line["tick"]: line for line in lines("cat", state, "--all")}
    assert every[3]["blank"] == "p:1:3"
    assert every[5]["mark"] == {}
    assert every[4]["attributes"] == {"price": 4, "symbol": "X"}
    assert (every[4]["id"], every[4]["payload"]) == ("p:1:4", "/w==")


def test_cat_prints_lines_for_people(state: Path) -> None:
    output = run("cat", state, "--to", "1").stdout
    assert output == '1  2026-01-31T12:00:01.000Z  p:1:1  {"price":1,"symbol":"X"}\n'
    assert '5  2026-01-31T12:00:05.000Z  {"mark":{}}' in run("cat", state, "--all").stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "6"], [6, 7, 8, 9]),
        (["--from", "2", "--to", "6"], [2, 4, 6]),
        (["--from", "10"], []),
        (["--since", "2026-01-31T12:00:07"], [7, 8, 9]),
        (["--since", "2026-01-31T13:00:07.5+01:00"], [8, 9]),
        (["--since", "2026-01-31"], [1, 2, 4, 6, 7, 8, 9]),
        (["--since", "2027-01-01"], []),
        (["--since", "2026-01-31T12:00:03", "--to", "7"], [4, 6, 7]),
        (["--where", "price BETWEEN 3 AND 7"], [4, 6, 7]),
        (["--where", "price > 3", "--all", "--to", "6"], [4, 6]),
    ],
)
def test_cat_begins_and_ends_where_it_is_told(
    state: Path, options: list[str], expected: list[int]
) -> None:
    assert ticks(state, *options) == expected


def test_cat_works_while_the_broker_runs_and_on_a_plain_copy(state: Path) -> None:
    store = Store.open(state, network="net", broker="b", options=OPTIONS, listener=Ears())
    assert len(ticks(state)) == 7
    store.close()
    assert len(ticks(state / "log")) == 7
    copy = state.parent / "copy"
    copy.mkdir()
    for path in segments_of(state)[-2:]:
        (copy / path.name).write_bytes(path.read_bytes())
    first = int(segments_of(copy.parent / "s")[-2].stem)
    assert ticks(copy)[0] == first
    assert f"the oldest is {first}" in error_of(run("cat", copy, "--from", "1"))


def test_cat_refuses_what_cannot_be(state: Path) -> None:
    both = run("cat", state, "--from", "1", "--since", "1h")
    assert "mutually exclusive" in error_of(both)
    assert "invalid time 'soon'" in error_of(run("cat", state, "--since", "soon"))
    wrong = run("cat", state, "--where", "price >")
    assert wrong.exit_code == 2
    assert wrong.stderr.endswith("\n  price >\n         ^\n")


# -- verify and repair


def damaged(state: Path) -> Path:
    path = segments_of(state)[1]
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    return path


def test_verify_tells_that_a_log_is_good(state: Path) -> None:
    result = run("verify", state)
    assert result.exit_code == 0
    assert result.stdout.startswith("good: ")
    assert "9 records, ticks 1–9" in result.stdout
    (path, *_) = (state / "log").glob("*.index")
    path.unlink()
    assert "note: " in run("verify", state).stdout
    assert lines("verify", state)[0]["records"] == 9


def half_damaged(state: Path) -> tuple[Path, int]:
    """Spoil the last record of the last segment that has two; it, and the tick of that."""
    path = segments_of(state)[-1]
    found = scan(path.read_bytes(), int(path.stem), path=str(path))
    assert len(found.records) > 1
    data = bytearray(path.read_bytes())
    data[found.offsets[-1] + HEAD_BYTES] ^= 1
    path.write_bytes(data)
    return path, found.last_tick


def test_cat_and_ls_show_what_is_good_and_then_tell_the_damage(state: Path) -> None:
    path, bad_tick = half_damaged(state)
    shown = run("cat", state, "--all", "--json")
    assert f"{path}, byte " in error_of(shown)
    found = [msgspec.json.decode(line)["tick"] for line in shown.stdout.splitlines()]
    assert found == [*range(1, bad_tick)]
    listed = run("ls", state, "--json")
    assert f"tick {bad_tick}: " in error_of(listed)
    names = [msgspec.json.decode(line)["name"] for line in listed.stdout.splitlines()]
    assert names == [each.name for each in segments_of(state)]
    assert "2026-01-31T12:00:01Z" in run("ls", state).stdout


def test_cat_says_nothing_about_damage_behind_what_it_was_asked_for(state: Path) -> None:
    _, bad_tick = half_damaged(state)
    assert run("cat", state, "--to", str(bad_tick - 1)).exit_code == 0


def test_a_log_of_one_segment_is_told_in_the_singular(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", network="net", broker="b", listener=Ears())
    store.close()
    assert run("verify", tmp_path / "s").stdout.startswith("good: 1 segment, 0 records, no ticks, ")


def test_verify_names_the_exact_place_of_damage_with_exit_code_1(state: Path) -> None:
    path = damaged(state)
    tick = int(path.stem)
    complaint = error_of(run("verify", state), code=1)
    assert f"{path}, byte 31, tick {tick}: " in complaint
    assert f"`anabranch log repair {path}`" in complaint
    (document, *_) = run("verify", state, "--json").stdout.splitlines()
    assert msgspec.json.decode(document)["tick"] == tick


def test_repair_asks_first_and_does_nothing_when_told_no(state: Path) -> None:
    path = damaged(state)
    before = path.read_bytes()
    result = run("repair", path, text="n\n")
    assert (result.exit_code, result.stderr) == (2, "")
    assert result.stdout.endswith("nothing was changed\n")
    assert f"damage: {path}, byte 31, tick {int(path.stem)}" in result.stdout
    assert f"lost: the records of ticks {int(path.stem)}–9" in result.stdout
    assert path.read_bytes() == before
    assert not [*(state / "log").glob("*.damaged*")]


@pytest.mark.parametrize("arguments", [("--yes",), ()])
def test_repair_makes_the_log_good_again_and_keeps_what_it_took_out(
    state: Path, arguments: tuple[str, ...]
) -> None:
    path = damaged(state)
    result = run("repair", path, *arguments, text="y\n")
    assert result.exit_code == 0, result.stderr
    assert "repaired; the broker can be started" in result.stdout
    kept = sorted((state / "log").glob("*.damaged"))
    assert all(f"kept the removed bytes in {each}" in result.stdout for each in kept)
    assert kept
    assert run("verify", state).exit_code == 0
    assert ticks(state) == [tick for tick in (1, 2) if tick < int(path.stem)]
    assert "nothing to repair" in run("repair", state).stdout


def test_repair_tells_in_json_what_it_took_out(state: Path) -> None:
    path = damaged(state)
    assert "--json asks no question; add --yes" in error_of(run("repair", path, "--json"))
    (done,) = lines("repair", path, "--yes")
    kept = [str(each) for each in sorted((state / "log").glob("*.damaged"))]
    assert (done["repaired"], done["kept"]) == (True, kept)
    plan = done["plan"]
    assert isinstance(plan, dict)
    assert (plan["path"], plan["tick"]) == (str(path), int(path.stem))
    assert lines("repair", state, "--yes") == [{"repaired": False}]


def test_repair_refuses_a_running_broker_and_what_is_no_log(state: Path, tmp_path: Path) -> None:
    store = Store.open(state, network="net", broker="b", options=OPTIONS, listener=Ears())
    assert "is in use by process" in error_of(run("repair", state))
    store.close()
    assert "does not exist" in error_of(run("repair", tmp_path / "a" / "b"))
    assert "is not in a state directory" in error_of(run("repair", tmp_path))


# -- aside


def test_aside_lists_records_that_were_set_aside(state: Path) -> None:
    assert run("aside", state).stdout == "no records are set aside\n"
    assert lines("aside", state) == []
    row = SetAsideRow(NOON * SECOND, "patterns", "rise", "it is none", 3, b"abc")
    catalog = Catalog(state / "catalog.sqlite")
    put = [(SET_ASIDE, str(number), msgspec.msgpack.encode(row)) for number in (10, 9)]
    catalog.commit([*put, (SET_ASIDE, "1", b"broken")], catalog.facts)
    catalog.close()
    text = "2026-01-31T12:00:00Z  patterns 'rise', 3 bytes: it is none\n"
    assert run("aside", state).stdout == text * 2
    assert lines("aside", state)[0]["value"] == "YWJj"


# -- copies of other streams


@pytest.fixture
def with_copies(state: Path) -> Path:
    """A state directory with a copy of `x` from tick 3 on, and an empty one of `y`."""
    store = Store.open(state, network="net", broker="b", options=OPTIONS, listener=Ears())
    store.open_copy("x", 3)
    store.open_copy("y", 8)
    for tick in range(3, 8):
        store.append(tick, record(tick), "x")
    store.close()
    return state


def segment_of_copy(state: Path) -> Path:
    return state / "copies" / "x.1" / "00000000000000000003.segment"


def test_copies_lists_the_copies_of_other_streams(state: Path, with_copies: Path) -> None:
    found = lines("copies", with_copies)
    assert [(copy["stream"], copy["first_tick"], copy["last_tick"]) for copy in found] == [
        ("x", 3, 7),
        ("y", 8, 7),
    ]
    assert ticks(str(found[0]["directory"])) == [4, 6, 7]
    assert "x.1" in run("copies", with_copies).stdout
    assert lines("ls", with_copies) == lines("ls", state / "log")


def test_copies_says_that_there_are_none(state: Path) -> None:
    assert run("copies", state).stdout == "there are no copies\n"
    assert lines("copies", state) == []


def test_verify_tells_which_copies_are_good(with_copies: Path) -> None:
    result = run("verify", with_copies)
    assert result.exit_code == 0
    own, x, y = result.stdout.splitlines()
    assert own.startswith("good: ")
    assert "copy" not in own
    assert x.startswith("good: copy of stream 'x', 1 segment, 5 records, ticks 3–7, ")
    assert y == "good: copy of stream 'y', 0 segments, 0 records, no ticks, 0 bytes"
    assert [each.get("stream") for each in lines("verify", with_copies)] == [None, "x", "y"]


def test_verify_tells_a_damaged_copy_and_the_next_start_sets_it_aside(with_copies: Path) -> None:
    data = bytearray(segment_of_copy(with_copies).read_bytes())
    data[80] ^= 1
    segment_of_copy(with_copies).write_bytes(data)
    result = run("verify", with_copies)
    assert result.exit_code == 1
    assert result.stdout.count("good: ") == 2
    assert "the copy of stream 'x' is corrupt: " in result.stderr
    assert "tick 4" in result.stderr
    document = msgspec.json.decode(run("verify", with_copies, "--json").stdout.splitlines()[1])
    assert (document["stream"], document["tick"]) == ("x", 4)
    Store.open(with_copies, network="net", broker="b", options=OPTIONS, listener=Ears()).close()
    result = run("verify", with_copies)
    assert result.exit_code == 0
    assert "the copy of stream 'x' was damaged" in result.stdout
    assert "lost" in run("copies", with_copies).stdout


def test_a_copy_is_not_repaired(with_copies: Path) -> None:
    segment = segment_of_copy(with_copies)
    for path in (segment, segment.parent, segment.parent.parent):
        assert "is not repaired" in error_of(run("repair", path, "--yes"))
