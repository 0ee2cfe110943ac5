"""A broker starts in another network than the one its disk remembers."""

from anabranch.core.origin.origin import Origin
from anabranch.model.client_frames import StartsAt, Subscribed
from anabranch.model.frames import Done, Hold
from anabranch.model.network import Network, tree_of_brokers
from tests.edge_parts import NETWORK, Rig
from tests.origin_parts import Driver, body, version

WITHOUT_C = Network({"hub": ["h1"], "a": ["a"], "b": ["b"]}, [("hub", "a"), ("hub", "b")])


def restarted(driver: Driver, network: Network) -> Origin:
    """The same log in another network."""
    parts = (driver.options, driver.limits, driver.disk.recovered(), driver.now)
    return Origin("a", network, *parts)


# -- origins -------------------------------------------------------------------------------------


def test_vectors_name_no_edge_that_has_left() -> None:
    driver = Driver()
    driver.mark(a=1, b=1, c=1)
    driver.mark(c=2)
    origin = restarted(driver, tree_of_brokers({"a": ["b"]}))
    assert dict(origin.vector) == {"a": version(1), "b": version(1)}


def test_the_vector_at_a_beginning_names_no_edge_that_has_left() -> None:
    driver = Driver()
    driver.mark(a=1, c=1)
    driver.publish_synced(body(1))
    for edge in ("a", "b", "c"):
        driver.carry(Done(2), edge)
    driver.wait(10.0)
    driver.sync_all()
    assert driver.disk.records == []
    origin = restarted(driver, tree_of_brokers({"a": ["b"]}))
    assert dict(origin.vector) == {"a": version(1)}


def test_an_edge_that_has_left_holds_nothing_back_and_is_forgotten() -> None:
    driver = Driver()
    driver.publish_synced(*(body(number) for number in range(1, 6)))
    driver.carry(Hold(9, 1), "c")
    driver.sync_all()
    assert "c" in driver.disk.catalog["done"]
    driver.network = tree_of_brokers({"a": ["b"]})
    driver.crash()
    for edge in ("a", "b"):
        driver.carry(Done(5), edge)
    driver.wait(10.0)
    driver.sync_all()
    assert driver.forgotten == 5
    assert set(driver.disk.catalog["done"]) == {"a", "b"}


def test_a_new_edge_is_done_with_what_was_forgotten_and_nothing_else() -> None:
    driver = Driver(network=tree_of_brokers({"a": ["b"]}))
    driver.publish_synced(*(body(number) for number in range(1, 6)))
    for edge in ("a", "b"):
        driver.carry(Done(3), edge)
    driver.wait(10.0)
    driver.sync_all()
    driver.network = tree_of_brokers({"a": ["b"], "b": ["c"]})
    driver.crash()
    assert driver.origin.edges_needing(3) == []
    assert driver.origin.edges_needing(4) == ["a", "b", "c"]


# -- edges ---------------------------------------------------------------------------------------


def durable(network: Network) -> tuple[Rig, dict[str, dict[str, bytes]]]:
    """A durable subscription that has started on every stream; what the disk has of it."""
    rig = Rig(network=network)
    session = rig.connect()
    rig.subscribe(session, "orders", quality="durable")
    for stream in rig.network.edges:
        rig.arrive(1, stream=stream)
        rig.ack(session, {stream: 1}, "orders")
    rig.wait(10.0)
    return rig, rig.catalog


def test_cursors_of_streams_that_left_are_swept_and_the_rest_goes_on() -> None:
    _, catalog = durable(NETWORK)
    rig = Rig(network=WITHOUT_C, catalog=catalog, life=2)
    assert set(rig.catalog["cursors"]) == {"orders\0a", "orders\0b"}
    session = rig.connect()
    ticks = {"a": 1, "b": 1, "c": 1}
    rig.subscribe(session, "orders", quality="durable", start="resume", number=2, ticks=ticks)
    (answer,) = rig.taken(session, Subscribed)
    assert answer.ticks == {"a": 1, "b": 1}


def test_a_durable_subscription_starts_on_a_stream_that_joins() -> None:
    _, catalog = durable(WITHOUT_C)
    rig = Rig(network=NETWORK, catalog=catalog, life=2)
    session = rig.connect()
    ticks = {"a": 1, "b": 1}
    rig.subscribe(session, "orders", quality="durable", start="resume", number=2, ticks=ticks)
    rig.arrive(7, stream="c")
    starts = rig.taken(session, StartsAt)
    assert [(each.stream, each.tick) for each in starts] == [("c", 7)]


def test_an_explicit_start_on_an_unknown_stream_is_still_refused() -> None:
    rig = Rig(network=WITHOUT_C)
    session = rig.connect()
    rig.subscribe(session, "s", start="tick", ticks={"c": 1})
    assert "there is no stream 'c'" in str(rig.frames[session])
