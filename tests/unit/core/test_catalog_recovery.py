"""A record of the catalog that cannot be read is set aside; the broker starts and serves."""

from collections.abc import Callable, Iterator
from functools import cache

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anabranch.core import contract
from anabranch.core.catalog_recovery import CONSEQUENCES, LINES_MAX, TABLE, decode_aside
from anabranch.model.client_frames import (
    FORGOTTEN,
    UNKNOWN_TOKEN,
    Commit,
    Committed,
    Define,
    Defined,
    PublishRefused,
    Refused,
    Subscribed,
    Withheld,
)
from anabranch.model.errors import LocalError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from tests.catalog_parts import (
    RISE,
    Machine,
    Tables,
    confirmations,
    copied,
    serves,
    used_machine,
)

#: Those of replication are spoilt in `replication/test_keeper.py` and `test_rows.py`.
TABLES = {name.partition("/")[0] for name in CONSEQUENCES} - {"copies", "carried"}
_encode = msgspec.msgpack.encode
HUGE = (1 << 64) - 1


@cache
def used() -> Machine:
    """With a record aside, and told to depart: the row is there, but for an older revision. Its log
    was renewed, it was alone once, it has seen the stream of a broker that has left, and it has
    forgotten a publisher."""
    machine = used_machine()
    machine.catalog["patterns"]["broken"] = b"\xc1"
    machine = machine.again()
    machine.tell(contract.Depart())
    machine.catalog["heard"] = {"gone": _encode((5, 4, 4))}
    machine.catalog["rollback"] = {"alone": b"3", "renewed": b"1"}
    machine.catalog["forgotten"] = {"floor": _encode(7)}
    return machine


def started(
    catalog: Tables,
    *,
    damaged: tuple[contract.DamagedRecord, ...] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> Machine:
    """The next life of the one that has used everything, with another catalog; not departing."""
    before = used()
    return Machine(
        catalog,
        tuple(before.records),
        first_tick=before.first_tick,
        now=before.now + 10.0,
        damaged=damaged,
        limits=limits,
        revision=2,
    )


def every_row() -> list[tuple[str, str]]:
    return sorted((table, key) for table, rows in used().catalog.items() for key in rows)


def test_a_used_broker_has_every_table_that_the_registry_names() -> None:
    assert {table for table, rows in used().catalog.items() if rows} == TABLES
    named = {name for name in CONSEQUENCES if "/" in name}
    single = {"broker", "stream", "edge"}
    assert {f"{table}/{key}" for table, key in every_row() if table in single} == named


def test_an_unspoilt_catalog_sets_nothing_aside() -> None:
    machine = started(used().catalog)
    assert machine.broker.set_aside.count == 0
    assert machine.broker.set_aside.kept == 1
    serves(machine)


UNREADABLE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda value: value[: len(value) // 2],
    "cut by one": lambda value: value[:-1],
    "no code": lambda _: b"\xc1\xc1\xc1",
    "noise": lambda _: bytes(range(200, 255)),
    "deep": lambda _: b"\x91" * 5_000 + b"\xc0",
    "nil": lambda _: b"\xc0",
    "text": lambda _: _encode("garbage"),
    "another shape": lambda _: _encode({"a": [1, 2, 3]}),
    "too long": lambda _: b"\xdf\xff\xff\xff\xff",
    "negative": lambda _: _encode([-1, -1, -1]),
    "huge": lambda _: _encode([HUGE, HUGE, HUGE, {}]),
    "words": lambda _: _encode(["x", "y", "z", "u", "v"]),
}
#: Not every kind makes every row unreadable: a number is a number after it is cut.
HARMLESS = {("broker", "cut"), ("broker", "cut by one"), ("marks", "nil")}


def rows_and_kinds() -> Iterator[tuple[str, str, str]]:
    """Every kind of damage, for one row of each kind of row."""
    alike = {"slow", "slow\0a", "open\0000", "open\0002", "pattern/rise", "pattern/rise\0a"}
    for table, key in every_row():
        rows = used().catalog[table]
        is_numbered = table in ("marks", "moves")
        if key in alike or (is_numbered and key != max(rows, key=int)):
            continue
        for kind in UNREADABLE:
            if (table, kind) not in HARMLESS or key == "departing":
                yield table, key, kind


def check_set_aside(machine: Machine, table: str, key: str, value: bytes) -> None:
    """It is counted, told with its consequence, and kept; and it is gone from its table."""
    assert machine.broker.set_aside.count >= 1
    (line,) = [
        text for text in machine.errors() if f"record {key!r} of table {table!r} cannot" in text
    ]
    consequence = CONSEQUENCES.get(f"{table}/{key}") or CONSEQUENCES[table]
    assert consequence.format(key=key) in line
    assert machine.catalog.get(table, {}).get(key) != value
    if table != TABLE:
        kept = [decode_aside(row) for row in machine.catalog[TABLE].values()]
        assert (table, key, value) in [(row.table, row.key, row.value) for row in kept]
    again = machine.again(revision=2)
    assert again.broker.set_aside.count == 0, again.errors()


@pytest.mark.parametrize(("table", "key", "kind"), list(rows_and_kinds()))
def test_an_unreadable_record_is_set_aside_and_the_broker_serves(
    table: str, key: str, kind: str
) -> None:
    catalog = copied(used().catalog)
    value = catalog[table][key] = UNREADABLE[kind](catalog[table][key])
    machine = started(catalog)
    check_set_aside(machine, table, key, value)
    if (table, key) == ("broker", "departing"):
        assert machine.broker.departure is not None
    else:
        serves(machine)


def test_a_record_that_the_disk_changed_is_set_aside_like_one_that_does_not_decode() -> None:
    for table, key in every_row():
        catalog = copied(used().catalog)
        value = catalog[table].pop(key)
        damaged = contract.DamagedRecord(table, key, value, "it was changed after it was written")
        machine = started(catalog, damaged=(damaged,))
        # What takes its place may say the same as it did.
        assert machine.broker.set_aside.count >= 1, (table, key)
        assert any("it was changed" in text for text in machine.errors()), (table, key)
        if key != "departing":
            serves(machine)


NO_KEYS = {
    "broker": ["", "lives", "life\0"],
    "stream": ["", "beginnings"],
    "marks": ["", "x", "-1", "007", "1_0", " 1", "٣", str(1 << 70), "9" * 5_000],
    "publishers": ["", "a\0b", "\n"],
    "forgotten": ["", "floors"],
    "done": [],
    "heard": [],
    "rollback": ["", "others"],
    "subscriptions": ["", "x" * 300, "a\nb"],
    "cursors": ["", "audit", "\0"],
    "moves": ["", "x", "-1", "01", str(1 << 61), "9" * 5_000],
    "edge": ["", "runs"],
    "sinks": ["", "\0"],
    "stage": ["", "open", "open\0", "open\0x", "open\0-1", "open\x0001", "\x000", "open\x00007"],
    "patterns": ["", "rose", "x" * 255],
    "patterns_gone": [],
    TABLE: ["", "x", "-1", "01", "9" * 5_000],
}


def test_a_key_that_nobody_could_have_written_is_set_aside() -> None:
    assert NO_KEYS.keys() == TABLES
    for table, keys in NO_KEYS.items():
        for key in keys:
            catalog = copied(used().catalog)
            catalog[table][key] = next(iter(catalog[table].values()))
            machine = started(catalog)
            assert machine.broker.set_aside.count == 1, (table, key, machine.errors())
            assert key not in machine.catalog[table]
            serves(machine)


def changed(table: str, key: str, place: int, value: object) -> bytes:
    row = msgspec.msgpack.decode(used().catalog[table][key])
    row[place] = value
    return _encode(row)


def garbage() -> Iterator[tuple[str, str, bytes]]:
    """Rows that decode, and say what cannot be."""
    end = used().first_tick + len(used().records)
    yield "broker", "life", b"%d" % (1 << 63)
    yield "broker", "life", b"-5"
    yield "broker", "life", b"9" * 5_000
    yield "edge", "run", b"%d" % (1 << 31)
    yield "stream", "beginning", changed("stream", "beginning", 2, 1 << 40)
    yield "stream", "beginning", changed("stream", "beginning", 3, {"a": [1]})
    yield "stream", "beginning", _encode([])
    yield "stream", "checkpoint", _encode([])
    for times in ([float("nan"), 1.0, 1, 1], [1.0, float("inf"), 1, 1], [1.0, 1.0, 1, -1]):
        yield "stream", "checkpoint", changed("stream", "checkpoint", 2, [times])
    for sections in ([[1.0, 1.0, 2, 1], [1.0, 1.0, 1, 1]], [[1.0, 1.0, 1 << 50, 1]]):
        yield "stream", "checkpoint", changed("stream", "checkpoint", 2, sections)
    yield "done", "a", _encode([end, 0])
    yield "publishers", "feed", _encode([1, 1 << 63])
    yield "publishers", "feed", _encode([1, 7, 5])
    yield "publishers", "feed", _encode([1, 7, -1, 3])
    yield "forgotten", "floor", _encode(-1)
    yield "forgotten", "floor", _encode([7])
    for place, value in ((0, ""), (0, "a\0b"), (1, "price >"), (1, "("), (2, -1), (2, HUGE)):
        yield "subscriptions", "audit", changed("subscriptions", "audit", place, value)
    large = f"price IN ({', '.join(map(str, range(60_000)))})"
    yield "subscriptions", "audit", changed("subscriptions", "audit", 1, large)
    searching = " OR ".join(f"t LIKE '%w{n}%'" for n in range(513))
    yield "subscriptions", "audit", changed("subscriptions", "audit", 1, searching)
    for row in ([0, 0], [5, 1], [1, end], [1, HUGE], [1, 0, True, 0], [1, 0, True, HUGE]):
        yield "cursors", "audit\0a", _encode(row)
    for tick in (-1, end, HUGE):
        yield "moves", "1", _encode({"a": {"audit": tick}})
    for place, value in ((2, 1 << 63), (1, -1), (7, end), (7, HUGE)):
        yield "sinks", "sink", changed("sinks", "sink", place, value)
    for drafts in ([b""], [b"garbage"], [b"\x94\x01\x95\xc0"], ["text"]):
        yield "stage", "open\0001", changed("stage", "open\0001", 2, drafts)
    yield from garbage_patterns()
    for until in (float("nan"), float("inf")):
        yield "patterns_gone", "gone", _encode([0, until])
    yield TABLE, "1", _encode([1, 2, 3])


def garbage_patterns() -> Iterator[tuple[str, str, bytes]]:
    places: dict[int, list[str | int]] = {
        0: ["other", ""],
        1: ["garbage", "", "a:{", RISE + " AND"],
        2: ["nowhere"],
        6: [1 << 63, (1 << 40) + 1],
        7: [(1 << 40) + 1],
        13: ["a", "nobody"],
    }
    for place, values in places.items():
        for value in values:
            yield "patterns", "rise", changed("patterns", "rise", place, value)


@pytest.mark.parametrize(("table", "key", "value"), list(garbage()))
def test_a_record_that_decodes_and_cannot_be_true_is_set_aside(
    table: str, key: str, value: bytes
) -> None:
    catalog = copied(used().catalog)
    catalog[table][key] = value
    machine = started(catalog)
    check_set_aside(machine, table, key, value)
    serves(machine)


def test_lower_limits_set_patterns_and_subscriptions_aside_and_no_more() -> None:
    machine = started(used().catalog, limits=Limits(pattern_bytes_max=10, filter_bytes_max=30))
    tables = [row.table for row in map(decode_aside, machine.catalog[TABLE].values())]
    assert tables == ["patterns", "patterns", "subscriptions", "cursors"]
    serves(machine)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_change_of_any_bytes_leaves_a_broker_that_serves(data: st.DataObject) -> None:
    table, key = data.draw(st.sampled_from(every_row()))
    catalog = copied(used().catalog)
    value = bytearray(catalog[table][key])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(value)))
        value[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    catalog[table][key] = bytes(value)
    try:
        machine = started(catalog)
    except LocalError:
        # A beginning or a checkpoint that can be read, and says that the log lost ticks.
        assert table == "stream"
        with pytest.raises(LocalError, match="do not belong together"):
            started(catalog)
        return
    if machine.broker.departure is None:
        serves(machine)
    assert machine.broker.set_aside.count == 0 or machine.errors()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(TABLES)), st.dictionaries(st.text(), st.binary())))
@example({"cursors": {"a\0b\0c": b"\x92\x01\x00"}, "moves": {"1": b"\x80"}})
def test_any_rows_of_any_tables_leave_a_broker_that_serves(
    rows: dict[str, dict[str, bytes]],
) -> None:
    machine = Machine(rows)
    if machine.broker.departure is None:
        serves(machine)


# -- what holds in the place of a record -----------------------------------------------------------


def spoilt(table: str, key: str) -> Machine:
    catalog = copied(used().catalog)
    catalog[table][key] = b"\xc1"
    return started(catalog)


def test_a_departing_broker_still_departs_until_a_later_revision() -> None:
    machine = spoilt("broker", "departing")
    session = machine.connect("new")
    machine.publish(session, "new", 1, 1)
    assert [frame.is_final for frame in machine.heard(session, PublishRefused)] == [True]
    assert machine.again(revision=2).broker.departure is not None
    assert machine.again(revision=3).broker.departure is None


def test_a_publisher_with_events_in_the_log_goes_on_exactly_where_it_was() -> None:
    machine = spoilt("publishers", "feed")
    for _ in range(2):
        session = machine.connect("feed")
        machine.publish(session, "feed", 1, 6, 7)
        assert confirmations(machine, session)[-1] == ("feed", 1, 7)
        assert not machine.heard(session, PublishRefused)
        before = len(machine.records)
        machine.publish(session, "feed", 1, 1, 7)
        assert len(machine.records) == before
        # The checkpoint must not speak for what was set aside in the next life either.
        machine = machine.again(revision=2)


def test_a_publisher_that_only_the_catalog_knew_may_not_go_on_with_an_old_incarnation() -> None:
    machine = spoilt("publishers", "early")
    for _ in range(2):
        session = machine.connect("early")
        machine.publish(session, "early", 1, 3)
        machine.publish(session, "early", 2, 1)
        refused = machine.heard(session, PublishRefused)
        assert [frame.is_final for frame in refused] == [True, True]
        machine = machine.again(revision=2)
    begun = refused[-1].begun
    session = machine.connect("early")
    machine.publish(session, "early", begun + 1, 1)
    assert confirmations(machine, session) == [("early", begun + 1, 1)]


@pytest.mark.parametrize("key", ["floor", "flour"])
def test_publishers_not_on_record_go_on_above_this_start_if_the_floor_is_lost(key: str) -> None:
    """Also if it is the key that is damaged: nobody knows what was under it."""
    catalog = copied(used().catalog)
    catalog["forgotten"] = {key: b"\xc1"}
    machine = started(catalog)
    start_ns = int(machine.now * 1e9)
    for name in ("gone", "gone too"):
        session = machine.connect(name)
        machine.publish(session, name, start_ns - 1, 1)
        (refused,) = machine.heard(session, PublishRefused)
        assert (refused.is_final, refused.code) == (True, FORGOTTEN)
        assert refused.begun >= start_ns - 1
        machine.publish(session, name, refused.begun + 1, 1)
        assert confirmations(machine, session) == [(name, refused.begun + 1, 1)]
        # One that is on record is not concerned.
        session = machine.connect("feed")
        machine.publish(session, "feed", 1, 7)
        assert confirmations(machine, session)[-1] == ("feed", 1, 7)
        machine = machine.again(revision=2)
        assert machine.broker.set_aside.count == 0


@pytest.mark.parametrize("key", ["beginning", "checkpoint"])
def test_the_log_speaks_for_a_beginning_and_for_a_checkpoint(key: str) -> None:
    good, machine = started(used().catalog), spoilt("stream", key)
    for each in (machine, machine.again(revision=2)):
        assert each.broker.origin is not None
        assert good.broker.origin is not None
        assert each.broker.origin.oldest == good.broker.origin.oldest
        assert each.broker.origin.newest >= good.broker.origin.newest
        session = each.connect("feed")
        each.publish(session, "feed", 1, 7)
        assert confirmations(each, session) == [("feed", 1, 7)]


def test_a_mark_is_found_in_the_log_again() -> None:
    key = max(used().catalog["marks"], key=int)
    good, machine = started(used().catalog), spoilt("marks", key)
    assert good.broker.origin is not None
    assert machine.broker.origin is not None
    found = dict(machine.broker.origin._marks)
    assert found[int(key)] == dict(good.broker.origin._marks)[int(key)]


def test_a_subscription_is_gone_and_may_be_made_again() -> None:
    machine = spoilt("subscriptions", "audit")
    assert [row.table for row in map(decode_aside, machine.catalog[TABLE].values())][1:] == [
        "subscriptions",
        "cursors",
    ]
    session = machine.connect("worker")
    machine.subscribe(session, "audit", start="resume")
    assert [frame.code for frame in machine.heard(session, Refused)] == ["unknown"]
    machine.subscribe(session, "audit", number=2)
    assert machine.heard(session, Subscribed)


def test_a_lost_position_lets_all_that_is_kept_come_again_and_skips_nothing() -> None:
    good, machine = started(used().catalog), spoilt("cursors", "audit\0a")
    for each in (good, machine):
        session = each.connect("worker")
        each.subscribe(session, "audit", start="resume")
        each.wait(2.0)
    assert good.delivered(1)
    assert machine.delivered(1)[-len(good.delivered(1)) :] == good.delivered(1)
    assert len(machine.delivered(1)) > len(good.delivered(1))
    # All that matches and is kept; the rest is told.
    assert machine.delivered(1)[0] == machine.first_tick
    (withheld,) = machine.heard(1, Withheld)
    assert isinstance(withheld, Withheld)
    assert [(hole.first, hole.last) for hole in withheld.holes] == [(1, machine.first_tick - 1)]


def test_a_lost_move_lets_events_come_again() -> None:
    rows = used().catalog["moves"]
    newest = max((key for key, row in rows.items() if b"audit" in row), key=int)
    good, machine = started(used().catalog), spoilt("moves", newest)
    for each in (good, machine):
        session = each.connect("worker")
        each.subscribe(session, "audit", start="resume")
        each.wait(2.0)
    assert machine.delivered(session)[0] == machine.first_tick < good.delivered(session)[0]


def test_a_sink_that_wrote_here_commits_no_more() -> None:
    machine = spoilt("sinks", "sink")
    for each in (machine, machine.again(revision=2)):
        session = each.connect("c")
        each.say(session, Commit(1, "sink", "q", 1, ("open",)))
        each.wait(1.0)
        (refused,) = each.heard(session, Refused)
        assert "is no longer known" in refused.reason
        each.say(session, Commit(2, "another", "q", 1, ("open",)))
        each.wait(1.0)
        if each is machine:
            assert each.heard(session, Committed)


def test_a_token_that_lost_a_chunk_is_not_committed() -> None:
    for index in range(3):
        machine = spoilt("stage", f"open\0{index}")
        session = machine.connect("c")
        machine.say(session, Commit(1, "another", "q", 1, ("open",)))
        machine.wait(1.0)
        (refused,) = machine.heard(session, Refused)
        assert refused.code == UNKNOWN_TOKEN
        assert len(machine.catalog.get("stage", {})) == index


def test_a_batch_whose_chunks_are_lost_is_refused_and_holds_nobody_up() -> None:
    catalog = copied(used().catalog)
    catalog["sinks"]["torn"] = _encode(["q", 3, 2, ["open"], 3])
    catalog["stage"]["open\0001"] = b"\xc1"
    machine = started(catalog)
    assert any("staged events of batch 3 are lost" in text for text in machine.errors())
    session = machine.connect("c")
    machine.say(session, Commit(1, "torn", "q", 3, ("open",)))
    machine.wait(1.0)
    (refused,) = machine.heard(session, Refused)
    assert refused.code == UNKNOWN_TOKEN
    serves(machine)


def test_a_pattern_is_gone_with_its_subscription_and_may_be_defined_again() -> None:
    machine = spoilt("patterns", "rise")
    assert "pattern/rise" not in machine.catalog["subscriptions"]
    session = machine.connect("c")
    machine.say(session, Define(1, "rise", RISE))
    machine.wait(3.0)
    assert machine.heard(session, Defined)
    assert "pattern/rise" in machine.catalog["subscriptions"]


# -- bounds ---------------------------------------------------------------------------------------


def test_what_is_set_aside_is_bounded_in_rows_bytes_and_lines() -> None:
    broken = {f"p{number}": b"\xc1" * 100 for number in range(LINES_MAX + 50)}
    limits = Limits(set_aside_max=20, set_aside_bytes_max=1_050)
    machine = Machine({"patterns_gone": broken}, limits=limits)
    assert machine.broker.set_aside.count == LINES_MAX + 50
    assert len(machine.errors()) == LINES_MAX + 1
    assert "50 more catalog records were set aside" in machine.errors()[-1]
    kept = [decode_aside(row) for row in machine.catalog[TABLE].values()]
    assert [len(row.value) for row in kept] == [100] * 10 + [0] * 10
    assert all(row.size == 100 for row in kept)
    machine.catalog["patterns_gone"] = {"new": b"\xc1" * 200}
    again = machine.again(limits=limits)
    kept = [decode_aside(row) for row in again.catalog[TABLE].values()]
    assert kept[-1].key == "new"
    assert kept[-1].value
    assert len(kept) <= 20
    assert sum(len(row.value) for row in kept) <= 1_050
    assert again.broker.set_aside.kept == len(kept)


def test_a_line_is_one_line_and_not_too_long() -> None:
    machine = Machine({"subscriptions": {"x\n" * 5_000: b"\xc1"}})
    (line,) = machine.errors()
    assert "\n" not in line
    assert len(line) < 3_000


# -- frames that must not be stored ---------------------------------------------------------------


def test_a_filter_that_is_too_long_once_it_is_written_back_is_refused() -> None:
    machine = Machine()
    session = machine.connect("c")
    text = f"price in({','.join(map(str, range(40_000)))})"
    assert len(text) < Limits().filter_bytes_max < len(text) + 39_999
    machine.subscribe(session, "large", text, number=1)
    (refused,) = machine.heard(session, Refused)
    assert "a filter of 268899 bytes" in refused.reason
    assert "large" not in machine.catalog.get("subscriptions", {})
    assert machine.again().broker.set_aside.count == 0


def test_one_frame_that_defines_garbage_leaves_nothing_on_disk() -> None:
    machine = Machine()
    session = machine.connect("c")
    machine.say(session, Define(1, "x", "garbage", is_new=True, must_exist=True))
    machine.wait(2.0)
    assert machine.heard(session, Refused)
    assert not machine.catalog.get("patterns")
    serves(machine.again())
