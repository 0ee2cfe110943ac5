"""`anabranch pub --advertise`: nothing else is published, and the broker is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import anabranch
from anabranch.cli.connect_options import Way
from anabranch.cli.main import app
from anabranch.cli.publish import _Publishing
from anabranch.cli.sources import Source
from anabranch.model.client_frames import Advertises
from anabranch.model.event import Event
from anabranch.model.filter import Filter
from tests.client_parts import frames_of, run
from tests.client_parts import network as brokers


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with anabranch.embedded() as running:
        yield running.addresses[0]


def invoke(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def test_only_what_is_advertised_is_published_and_the_broker_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers("a") as (a,):
            source = Source(given={"price": 12})
            promised = [Filter.parse("price > 10"), Filter.parse("symbol = 'IBM'")]
            way = Way(addresses=[a.address])
            summary = await _Publishing(source, Event, 0, promised).run(way)
            assert summary.published == 1
            (frame,) = frames_of(a, Advertises)
            assert isinstance(frame, Advertises)
            assert frame.filters == ["price > 10", "symbol = 'IBM'"]

    run(story)


def test_an_event_outside_of_what_is_advertised_is_found_before_anything_is_published(
    address: str, tmp_path: Path
) -> None:
    file = tmp_path / "quotes.jsonl"
    file.write_text('{"price": 12}\n{"prcie": 13}\n')
    words = ("pub", address, "--json-lines", str(file), "--advertise", "price > 10")
    done = invoke(*words)
    assert done.exit_code == 2
    assert "line 2:" in done.stderr
    assert "advertisements, price > 10" in done.stderr
    assert "no event was published" in done.stderr
    done = invoke(*words[:-2], "--advertise", "price > 1 AND price < 0")
    assert done.exit_code == 2
    assert "no event can match" in done.stderr
    done = invoke(*words[:-2], "--advertise", "price >")
    assert done.exit_code == 2


def test_an_event_of_a_pipe_outside_of_what_is_advertised_tells_where_to_go_on(
    address: str,
) -> None:
    lines = '{"price": 12}\n{"prcie": 13}\n{"price": 14}\n'
    done = invoke("pub", address, "-j", "-", "--advertise", "price > 10", stdin=lines)
    assert done.exit_code == 2
    assert "1 event confirmed; after fixing the error, continue with --from-line 2" in done.stderr
