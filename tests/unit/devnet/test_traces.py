"""Traces are read, merged and judged; what is wrong in them is named."""

from pathlib import Path

import pytest

from anabranch.check import history as saw
from anabranch.devnet.traces import encode_line, merge, read_trace, without_forgotten
from anabranch.devnet.verdict import concluded, judge
from anabranch.model.errors import LocalError
from anabranch.sim.runner import Order, plan_of
from anabranch.sim.simulation import Simulation
from tests.history_parts import (
    confirmed,
    delivered,
    logged,
    published,
    started,
    stream_of,
    subscribed,
)


def test_every_kind_of_record_comes_back(tmp_path: Path) -> None:
    records: list[saw.Record] = [
        published(1),
        saw.Published(1.5, "p", 1, 2, {"t": "é\n", "f": 0.5, "b": True, "i": 2**63 - 1}, "o"),
        confirmed(2),
        saw.Abandoned(2.0, "p", 1),
        logged(1),
        saw.Forgotten("o", 1),
        subscribed(((("a", "<=", 5), ("b", "=", "x")), (("c", ">", 1.5),)), quality="durable"),
        started(1),
        delivered(1),
        saw.WithheldTold(3.0, "s", "o", 4, 5, "why"),
        saw.Ended(4.0, "s", "o", 9),
        saw.Cut(5.0, "s"),
        saw.Healed(6.0),
        saw.Finished(7.0, ("o",)),
    ]
    path = tmp_path / "trace"
    path.write_bytes(b"".join(map(encode_line, records)))
    assert read_trace(path) == records


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(encode_line(published(1)) + encode_line(published(2))[:-5])
    assert read_trace(path) == [published(1)]


@pytest.mark.parametrize("bad", [b"{}\n", b"nonsense\n", b'{"type":"Published"}\n', b"\xff\n"])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(encode_line(published(1)) + bad)
    with pytest.raises(LocalError, match="trace, line 2: not a trace record"):
        read_trace(path)


def test_a_file_that_is_no_trace_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"something else")
    with pytest.raises(LocalError, match="is not a trace"):
        read_trace(path)


def test_traces_are_merged_by_time_and_keep_their_own_order() -> None:
    back = saw.Cut(1.0, "later")
    one: list[saw.Record] = [saw.Cut(2.0, "a"), back, saw.Cut(5.0, "b")]
    other: list[saw.Record] = [saw.Cut(3.0, "c"), logged(7), saw.Cut(4.0, "d")]
    assert merge([one, other]) == [one[0], back, *other, one[2]]


def test_a_simulated_run_is_judged_as_the_simulator_judges_it(tmp_path: Path) -> None:
    simulation = Simulation(plan_of(Order("tree", "any", 5, "any", ()), 1))
    assert simulation.run().anomalies == ()
    history = simulation.history
    path = tmp_path / "trace"
    path.write_bytes(b"".join(map(encode_line, history)))
    verdict = judge(read_trace(path))
    assert verdict.clean
    assert verdict.finished
    assert verdict.delivered == sum(isinstance(record, saw.Delivered) for record in history) > 0


def test_what_is_missing_at_the_end_is_lost_only_in_a_concluded_history() -> None:
    history = [*stream_of(1, 2), subscribed(), started(1), delivered(1)]
    assert judge(history).clean
    verdict = judge(concluded(history))
    assert verdict.anomalies == {"lost": 1, "gap": 0, "duplicate": 0, "reordered": 0}
    (account,) = verdict.accounts
    assert (account.matching, account.delivered, account.anomalies) == (2, 1, {"lost": 1})


def test_a_subscription_that_never_started_is_stuck_in_a_concluded_history() -> None:
    assert judge(concluded([*stream_of(1), subscribed()])).anomalies["stuck"] == 1


def test_counts_are_of_events_not_of_records() -> None:
    history = [*stream_of(1, 2, 3), published(3), published(4), subscribed(), started(1)]
    verdict = judge([*history, delivered(1), delivered(1)])
    assert (verdict.published, verdict.confirmed, verdict.logged) == (4, 3, 3)
    assert verdict.anomalies["duplicate"] == 1
    assert [example.name for example in verdict.examples] == ["duplicate"]


def test_what_a_log_has_forgotten_is_judged_by_what_was_delivered() -> None:
    told = [*(published(n) for n in range(1, 5)), confirmed(4), subscribed(), started(1)]
    history = [*told, delivered(2), delivered(3), delivered(4)]
    entries = [logged(3), logged(4)]
    assert judge(without_forgotten(history, entries, {"o": 3})).clean
    assert judge(without_forgotten(history, entries, {"o": 1})).anomalies["lost"] == 2
    repeated = without_forgotten([*history, delivered(2)], entries, {"o": 3})
    assert judge(repeated).anomalies["duplicate"] == 1
