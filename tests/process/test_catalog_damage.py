"""Real brokers whose catalog holds what nobody can read: they start, say so, and serve."""

import re
import sqlite3
from pathlib import Path

import pytest

from anabranch.devnet.observe import ask
from anabranch.model.client_frames import Connect, Define, Refused
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.store.catalog import Catalog
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.framing import framed
from tests.broker_parts import Brokers, Honest, command
from tests.node_parts import Stranger, greeting, samples_of
from tests.process_parts import run

pytestmark = pytest.mark.slow

PAIR = '[network]\nname = "pair"\n[tree]\nB1 = ["B2"]\n'
#: Rows as a program, and as sqlite alone would put them.
PUT = [
    ("patterns", "rise", b"garbage"),
    ("subscriptions", "audit", b"\xc1"),
    ("publishers", "feed", b""),
    ("moves", "first", b"\x80"),
]
CHANGED = "INSERT INTO entry VALUES ('sinks', 'sink', x'90', 7), ('stage', x'ff', 'text', 0)"


async def define_garbage(brokers: Brokers) -> None:
    """The one frame that made a broker fail at every start."""
    stranger = await Stranger.at(brokers["B1"].places["clients"])
    stranger.send(greeting(name="hostile", network="pair"))
    await stranger.greeting()
    define = Define(1, "x", "garbage", is_new=True, must_exist=True)
    for frame in (Connect(PROTOCOL_VERSION, "hostile"), define):
        stranger.send(framed(encode_client(frame)))
    answer = decode_client(await stranger.frame())
    assert isinstance(answer, Refused)
    assert "cannot both be new and have to exist" in answer.reason
    await stranger.close()


async def work(brokers: Brokers, name: str) -> None:
    honest = await Honest.at(brokers.address("B1"), brokers.address("B2"), name)
    await honest.close()


def test_one_frame_does_not_keep_a_broker_from_starting_again(tmp_path: Path) -> None:
    with Brokers(tmp_path, PAIR) as brokers:
        brokers.start("B1", "B2")
        run(define_garbage(brokers))
        run(work(brokers, "before"))
        assert brokers["B1"].end() == 0
        brokers.start("B1")
        run(work(brokers, "after"))
        assert brokers["B1"].end() == 0
        assert "set aside" not in brokers["B1"].said()


def spoil(state: Path) -> None:
    catalog = Catalog(state / "catalog.sqlite")
    catalog.commit(PUT, catalog.facts)
    catalog.close()
    connection = sqlite3.connect(state / "catalog.sqlite")
    connection.execute(CHANGED)
    connection.commit()
    connection.close()


async def metric(brokers: Brokers, name: str) -> int:
    place = brokers["B1"].places["observe"]
    answer = await ask(place.host, place.port, "/metrics")
    assert answer is not None
    return int(samples_of(answer[1].decode())[f"anabranch_{name}"])


async def counted(brokers: Brokers, aside: int, kept: int) -> None:
    status = await brokers.status("B1")
    assert (status.set_aside, status.set_aside_kept) == (aside, kept)
    assert await metric(brokers, "catalog_set_aside_total") == aside
    assert await metric(brokers, "catalog_set_aside") == kept


def test_records_that_nobody_can_read_are_set_aside_counted_and_shown(tmp_path: Path) -> None:
    with Brokers(tmp_path, PAIR) as brokers:
        brokers.start("B1", "B2")
        run(work(brokers, "before"))
        assert brokers["B1"].end() == 0
        state = brokers.file.broker("B1").state
        spoil(state)
        count = len(PUT) + 2
        brokers.start("B1")
        run(counted(brokers, count, count))
        run(work(brokers, "after"))
        said = brokers["B1"].said()
        assert said.count("was set aside") == count
        assert re.search(r" error +B1: catalog record 'rise' of table 'patterns'", said)
        assert brokers["B1"].end() == 0
        shown = command("log", "aside", str(state))
        assert (shown.returncode, shown.stdout.count("\n")) == (0, count)
        brokers.start("B1")
        run(counted(brokers, 0, count))
        run(work(brokers, "again"))
        assert brokers["B1"].end() == 0
