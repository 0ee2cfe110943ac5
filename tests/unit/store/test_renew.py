"""Renewing a log that is an old copy: no tick stands for two events, and nothing goes silently."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from anabranch.core.contract import Recovered
from anabranch.core.options import Options
from anabranch.core.origin import ledger, publishers, rollback
from anabranch.core.origin.log_tail import (
    LOST_PUBLISHER,
    AnyRecord,
    BlankRecord,
    EventRecord,
    MarkRecord,
    decode_record,
    encode_record,
)
from anabranch.core.origin.renewal import LOST_TICKS_MAX
from anabranch.core.origin.rollback import RollbackVerdict
from anabranch.model.encoding import decode_event, encode_event
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, EventId
from anabranch.model.version import Version
from anabranch.store.catalog import Catalog
from anabranch.store.files import CATALOG
from anabranch.store.log import LogOptions
from anabranch.store.log_repair import HeldForRenewal, RenewalPlan
from anabranch.store.store import Store, StoreOptions
from tests.store_parts import Ears, quick_directory, segments_of

TICKS = 9
CLOCK_NS = 10**18
#: A mark; all other ticks have events.
MARK = 7
OPTIONS = StoreOptions(log=LogOptions(segment_bytes=110, reserve_bytes=128))


def record_of(tick: int) -> AnyRecord:
    if tick == MARK:
        return MarkRecord(tick, {"b": Version(1, 1)})
    event = Event({"n": tick}, id=EventId("p", 3, tick))
    return EventRecord(tick, encode_event(event))


def opened(state: Path) -> tuple[Store, Ears]:
    ears = Ears()
    return Store.open(state, network="n", broker="b", options=OPTIONS, listener=ears), ears


def put(state: Path, key: str, value: bytes) -> None:
    store, ears = opened(state)
    store.put(rollback.TABLE, key, value)
    store.sync(1)
    ears.wait_synced(1)
    store.close()


@pytest.fixture
def state() -> Iterator[Path]:
    with quick_directory() as place:
        path = place / "s"
        store, ears = opened(path)
        for tick in range(1, TICKS + 1):
            store.append(tick, encode_record(record_of(tick)))
            store.sync(tick)
            ears.wait_synced(tick)
        store.close()
        assert len(segments_of(path)) > 2
        yield path


def refute(state: Path, newest: int, start: int = TICKS) -> None:
    put(state, rollback.ROLLED_BACK, msgspec.msgpack.encode(RollbackVerdict(newest, "r", start)))


def renewed(state: Path, above: int = 0, spare: int = 5) -> tuple[RenewalPlan, Path | None]:
    work = HeldForRenewal(state)
    try:
        plan = work.plan(above, spare)
        assert plan is not None
        return plan, work.perform(plan)
    finally:
        work.close()


def contents(state: Path) -> list[int | str]:
    """Of each tick the number in its event, `mark` or `lost`."""
    store, _ = opened(state)
    records = [decode_record(data) for data in store.recovered.records]
    store.close()
    return [_content(record) for record in records]


def _content(record: AnyRecord) -> int | str:
    if isinstance(record, EventRecord):
        number = decode_event(record.body).attributes["n"]
        assert isinstance(number, int)
        return number
    if isinstance(record, MarkRecord):
        return "mark"
    assert isinstance(record, BlankRecord)
    assert record.id.publisher == LOST_PUBLISHER
    return "lost"


GOOD = [1, 2, 3, 4, 5, 6, "mark", 8, 9]


def test_a_log_that_nobody_objects_to_is_left_alone(state: Path) -> None:
    work = HeldForRenewal(state)
    assert work.plan() is None
    work.close()
    assert contents(state) == GOOD


def test_ticks_that_others_know_become_lost_ticks_and_some_more(state: Path) -> None:
    refute(state, 12)
    plan, kept = renewed(state)
    assert (plan.what.base, kept) == (17, None)
    assert contents(state) == GOOD + ["lost"] * 8


def test_a_tick_that_the_operator_knows_counts_too(state: Path) -> None:
    renewed(state, above=11, spare=0)
    assert contents(state) == [*GOOD, "lost", "lost"]


def test_disputed_ticks_become_lost_and_their_events_come_again(state: Path) -> None:
    refute(state, 8, start=4)
    plan, kept = renewed(state, spare=2)
    assert list(plan.what.disputed) == [5, 6, 7, 8]
    assert contents(state) == [1, 2, 3, 4, *["lost"] * 4, 9, "lost", "lost", 5, 6, 8]
    assert kept is not None
    assert any(kept.iterdir())


@pytest.mark.parametrize("start", [0, 4, TICKS])
def test_an_interrupted_renewal_keeps_the_broker_from_starting_and_can_be_finished(
    state: Path, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refute(state, TICKS + 3, start=start)

    def fail(_ticks: int) -> None:
        raise OSError("the power is gone")

    work = HeldForRenewal(state)
    plan = work.plan(spare=2)
    assert plan is not None
    with pytest.raises(OSError, match="power"):
        work.perform(plan, fail)
    work.close()
    with pytest.raises(LocalError, match=r"was interrupted; run 'anabranch log renew"):
        opened(state)
    renewed(state)
    again = [number for number in GOOD[start:] if number != "mark"]
    lost = ["lost"] * (TICKS - start + 5)
    assert contents(state) == [*GOOD[:start], *lost, *again]


@pytest.mark.parametrize("value", [b"\xc1", b"\x93", b"\x92\x01", b""])
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_renewal_whose_plan_is_damaged_is_neither_forgotten_nor_guessed(
    state: Path, value: bytes, is_torn: bool
) -> None:
    put(state, rollback.RENEWING, value)
    if is_torn:
        with closing(sqlite3.connect(state / CATALOG)) as connection, connection:
            connection.execute("UPDATE entry SET crc = crc + 1 WHERE key = 'renewing'")
    with pytest.raises(LocalError, match=r"its plan in catalog.sqlite is damaged"):
        opened(state)
    work = HeldForRenewal(state)
    with pytest.raises(LocalError, match=r"its plan in catalog.sqlite is damaged"):
        work.plan()
    work.close()


def test_publishers_go_on_with_a_new_incarnation(state: Path) -> None:
    refute(state, 12)
    renewed(state)
    catalog = Catalog(state / CATALOG)
    tables = catalog.tables
    catalog.close()
    assert msgspec.msgpack.decode(tables[publishers.TABLE]["p"]) == [4, 0]
    assert tables[rollback.TABLE].keys() == {rollback.RENEWED}
    rows, _ = publishers.stored(Recovered(tables))
    known = publishers.Publishers(rows, Options(), CLOCK_NS / 1e9, is_renewed=True)
    refusal = known.refusal(EventId("p", 3, 10), CLOCK_NS)
    assert refusal is not None
    assert (refusal.is_final, refusal.begun) == (True, 4)
    assert known.refusal(EventId("p", 4, 1), CLOCK_NS) is None
    # Nobody knows what the lost part had of one that is not known at all.
    refusal = known.refusal(EventId("q", 1, 5), CLOCK_NS)
    assert refusal is not None
    assert (refusal.is_final, refusal.begun) == (True, 1)


def test_a_publisher_whose_first_event_was_refused_has_not_begun_in_the_lost_part() -> None:
    known = publishers.Publishers({}, Options(), CLOCK_NS / 1e9, is_renewed=True)
    known.postpone(EventId("q", 1, 1))
    refusal = known.refusal(EventId("q", 1, 5), CLOCK_NS)
    assert refusal is not None
    assert not refusal.is_final


def test_marks_at_disputed_ticks_are_taken_out_of_the_catalog(state: Path) -> None:
    store, ears = opened(state)
    vector = msgspec.msgpack.encode({})
    for tick in ("2", "7"):
        store.put("marks", tick, vector)
    beginning = ledger.LogStart(0, 0, 6, {"b": Version(1, 1)})
    store.put(ledger.TABLE, ledger.KEY, msgspec.msgpack.encode(beginning))
    store.sync(1)
    ears.wait_synced(1)
    store.close()
    refute(state, 12, start=4)
    renewed(state)
    catalog = Catalog(state / CATALOG)
    assert catalog.tables["marks"].keys() == {"2"}
    assert ledger.stored_beginning(catalog.tables).mark == 0
    catalog.close()


def test_a_leap_that_is_too_far_is_refused(state: Path) -> None:
    work = HeldForRenewal(state)
    with pytest.raises(LocalError, match="under a new name"):
        work.plan(above=LOST_TICKS_MAX * 2)
    work.close()
    assert contents(state) == GOOD
