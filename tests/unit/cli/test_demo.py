"""What the demonstration shows of a moment; the whole of it is in tests/process."""

from pathlib import Path

import pytest
from rich.console import Console

from anabranch.cli.demo import PLAYS, Moment, Play, Reader, line, tables
from anabranch.cli.demo_pipeline import obstacle
from anabranch.devnet.sample_data import Quotes, network_from
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter


def moment() -> Moment:
    reader = Reader(
        name="acme",
        filter="price > 10",
        quality="durable",
        home="e3",
        received=1_200,
        outstanding=7,
        lag_ms=12.4,
        silent_s=0.5,
    )
    return Moment(
        seconds=12.0,
        phase="kill -9 of a relay: w1",
        published=5_000,
        confirmed=4_990,
        published_per_s=200.0,
        delivered_per_s=150.0,
        brokers={"w1": "down", "w2": "ready"},
        readers=(reader,),
    )


def test_a_line_says_how_much_how_fast_and_who_is_down() -> None:
    text = line(moment())
    assert "published 5,000 (200/s)" in text
    assert "delivered 1,200 (150/s)" in text
    assert "on the way 7" in text
    assert text.endswith("down: w1")


def test_the_tables_name_each_subscriber_with_its_broker_and_lag() -> None:
    console = Console(width=140, record=True, quiet=False, file=None)
    with console.capture() as captured:
        console.print(tables(moment()), markup=False)
    text = captured.get()
    assert "w1[down]" in text
    row = next(each for each in text.splitlines() if "acme" in each)
    assert all(part in row for part in ("price > 10", "durable", "e3", "1,200", "7", "12"))


@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
def test_every_play_kills_relays_and_an_edge_and_leaves_the_others_joined(play: Play) -> None:
    network = network_from(play.shape).network
    assert {edge for each in play.listeners for edge in each.edges} <= set(network.edges)
    assert {edge for each in play.speakers for edge in each.edges} <= set(network.edges)
    killed = {victim for blow in play.blows for victim in blow.victims}
    assert killed & set(network.edges)
    assert killed - set(network.edges)
    # Whoever loses its broker has somewhere to go.
    assert all(set(each.edges) - killed for each in play.listeners)
    for blow in play.blows:
        left = set(network.brokers) - set(blow.victims)
        reached, pending = set(), [min(left)]
        while pending:
            broker = pending.pop()
            reached.add(broker)
            pending += [near for near in network.links_of(broker) if near in left - reached]
        assert reached == left


def test_the_mesh_is_played_with_publishers_that_advertise_and_one_that_does_not() -> None:
    play = PLAYS["mesh"]
    assert {bool(each.advertised) for each in play.speakers} == {True, False}
    for each in play.speakers:
        promised = [Filter.parse(text) for text in each.advertised]
        drawn = [Quotes(1, promised).draw() for _ in range(20)]
        assert all(any(one.matches(quote) for one in promised) for quote in drawn if promised)


def test_quotes_that_nobody_can_draw_are_refused() -> None:
    with pytest.raises(LocalError, match="none of 10,000 quotes matches"):
        Quotes(1, [Filter.parse("symbol = 'NONE'")]).draw()


def test_a_machine_without_java_is_told_so_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"JAVA_HOME={tmp_path} is not a working Java" in obstacle()
