"""Brokers that cannot or must not start: each says why in one line and ends with 2. What is in
their way is left as it was, so the right broker starts afterwards and has lost nothing.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.client.client import connect
from anabranch.config.network_file import dump, load
from anabranch.store.catalog import Catalog
from tests.broker_parts import Brokers, Honest, failing, refused
from tests.process_parts import BRISK, run, until_asked

pytestmark = pytest.mark.slow

ONE = '[network]\nname = "one"\n[tree]\na = []\n'
PAIR = '[network]\nname = "pair"\n[tree]\nB1 = ["B2"]\n'
EVENTS = 20
HOUR_NS = 3_600 * 10**9


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker that does not run, with events in its directory. In the end it starts all the same,
    and has lost nothing."""
    with Brokers(tmp_path_factory.mktemp("one"), ONE) as brokers:
        brokers.start("a")
        run(publish(brokers))
        assert brokers["a"].end() == 0
        yield brokers
        start_well(brokers)


async def publish(brokers: Brokers) -> None:
    client = await connect(brokers.address("a"), options=BRISK)
    await client.publish_many({"n": number} for number in range(EVENTS))
    await client.close()


def start_well(brokers: Brokers) -> None:
    """Nothing is lost, and it goes on."""

    async def has_all() -> None:
        await publish(brokers)
        log = (await brokers.status("a")).log
        assert log is not None
        assert log.head >= 2 * EVENTS

    brokers.start("a")
    run(has_all())
    assert brokers["a"].end() == 0


def state_of(brokers: Brokers, name: str = "a") -> Path:
    return brokers.file.broker(name).state


def test_a_port_in_use_is_named(one: Brokers) -> None:
    port = one.file.broker("a").clients_port
    with socket.create_server(("127.0.0.1", port)):
        said = refused("a", one.path)
    assert f"127.0.0.1:{port}: Address already in use; another process listens there" in said


def test_a_state_directory_of_another_network_is_left_alone(one: Brokers, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(ONE.replace('"one"', '"two"'))
    state = str(state_of(one))
    said = refused("a", other, "--state", state)
    assert "belongs to broker 'a' of network 'one', not to 'a' of 'two'" in said
    one.start("a")
    said = refused("a", other, "--state", state)
    assert f"{state} is in use by process {one['a'].process.pid}, broker a of network one" in said
    assert one["a"].end() == 0


def test_a_state_directory_of_another_broker_is_left_alone(one: Brokers, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[network]\nname = "one"\n[tree]\nb = []\n')
    said = refused("b", other, "--state", str(state_of(one)))
    assert "belongs to broker 'a' of network 'one', not to 'b' of 'one'" in said


def test_a_state_directory_that_is_none_is_named(one: Brokers, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("mine")
    for place in (in_the_way, in_the_way / "below"):
        said = refused("a", one.path, "--state", str(place))
        assert f"the state directory {place} cannot be used: " in said
    assert in_the_way.read_text() == "mine"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("identity.toml", "identity.toml"),
        ("catalog.sqlite", "the catalog .* cannot be read: file is not a database"),
    ],
)
def test_what_cannot_be_read_is_named_and_left_as_it_is(
    one: Brokers, file: str, reason: str
) -> None:
    path = state_of(one) / file
    good = path.read_bytes()
    path.write_bytes(b"not at all" * 1_000)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(refused("a", one.path))
    assert path.read_bytes() == b"not at all" * 1_000
    path.write_bytes(good)


def test_a_clock_that_was_set_back_costs_nothing(tmp_path: Path) -> None:
    """As if the last life had been begun an hour from now."""
    future = time.time_ns() + HOUR_NS

    async def work(brokers: Brokers, name: str) -> None:
        honest = await Honest.at(brokers.address("B1"), brokers.address("B2"), name)
        await honest.close()

    with Brokers(tmp_path, PAIR) as brokers:
        brokers.start("B1", "B2")
        run(work(brokers, "before"))
        assert brokers["B1"].end() == 0
        put_life(state_of(brokers, "B1"), future)
        brokers.start("B1")
        run(work(brokers, "after"))
        run(_lives_after(brokers, future))


def put_life(state: Path, life: int) -> None:
    catalog = Catalog(state / "catalog.sqlite")
    catalog.commit([("broker", "life", b"%d" % life)], catalog.facts)
    catalog.close()


async def _lives_after(brokers: Brokers, future: int) -> None:
    assert (await brokers.status("B1")).life > future


def test_a_broker_that_lost_its_disk_and_whose_clock_went_back_is_told_so(tmp_path: Path) -> None:
    future = time.time_ns() + HOUR_NS

    async def is_refused() -> bool:
        link = (await brokers.status("B1")).links[0]
        return not link.is_up and "lost its disk and its clock went back" in link.reason

    async def is_linked() -> bool:
        return (await brokers.status("B1")).links[0].is_up

    with Brokers(tmp_path, PAIR) as brokers:
        brokers.start("B1", "B2")
        assert brokers["B1"].end() == 0
        put_life(state_of(brokers, "B1"), future)
        brokers.start("B1")
        run(until_asked(is_linked, "the links are up"))
        assert brokers["B1"].end() == 0
        lost = state_of(brokers, "B1")
        lost.rename(lost.with_name("lost"))
        brokers.start("B1")
        run(until_asked(is_refused, "it is told why there is no link"))
        # The advice is good: with its disk it is known again.
        assert brokers["B1"].end() == 0
        lost.rename(lost.with_name("wrong"))
        lost.with_name("lost").rename(lost)
        brokers.start("B1")
        run(until_asked(is_linked, "the link is up again"))


CYCLE = """
[network]
name = "round"
[sites]
a = { brokers = ["a"], joins = ["x"] }
x = { brokers = ["x"], joins = ["y"] }
y = { brokers = ["y"], joins = ["z"] }
z = { brokers = ["z"], joins = ["x", "b"] }
b = { brokers = ["b"] }
"""


def test_a_cycle_is_named_by_everything_that_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "round.toml"
    path.write_text(CYCLE)
    for said in (refused("a", path), failing("network", "check", str(path))):
        assert "round.toml" in said
        assert "cycle" in said
    assert not (tmp_path / "state").exists()


def test_a_revision_that_the_others_do_not_have_is_told_and_waited_for(tmp_path: Path) -> None:
    async def is_told() -> bool:
        link = (await brokers.status("B1")).links[0]
        return "revision" in link.reason

    with Brokers(tmp_path, PAIR) as brokers:
        brokers.start("B2")
        newer = dump(load(brokers.path)).replace("revision = 1", "revision = 2")
        brokers.path.write_text(newer)
        brokers.start("B1")
        run(until_asked(is_told, "the revisions are told"))
        assert brokers["B2"].process.poll() is None
