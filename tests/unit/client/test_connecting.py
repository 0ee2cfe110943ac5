"""Where a client connects to: the order of addresses, network files, forms of addresses."""

from pathlib import Path

import pytest

import anabranch
from anabranch import Client, ClientOptions, ConnectError, LocalError, connect, connect_blocking
from anabranch.client.client import ordered
from anabranch.client.options import Address, parse_address
from tests.client_parts import network, run

ADDRESSES = [Address("127.0.0.1", port) for port in range(1, 9)]


def test_the_given_order_is_kept_on_request() -> None:
    assert ordered([*ADDRESSES, ADDRESSES[0]], "given") == ADDRESSES


def test_a_random_order_has_all_addresses_and_depends_on_the_seed_only() -> None:
    orders = [ordered(ADDRESSES, "random", seed) for seed in range(20)]
    assert all(sorted(each) == ADDRESSES for each in orders)
    assert orders == [ordered(ADDRESSES, "random", seed) for seed in range(20)]
    assert len({each[0] for each in orders}) > 3


def test_an_unknown_order_is_an_error() -> None:
    with pytest.raises(LocalError, match="give 'random' or 'given'"):
        ordered(ADDRESSES, "sorted")  # type: ignore[arg-type]


def test_clients_spread_over_the_brokers_by_default() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            brokers = set()
            for seed in range(8):
                options = ClientOptions(address_seed=seed)
                async with connect(a.address, b.address, options=options) as client:
                    brokers.add(client.broker)
                async with connect(b.address, a.address, address_order="given") as client:
                    assert client.broker == "b"
            assert brokers == {"a", "b"}

    run(story)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:4100",
        "tcp://127.0.0.1:4100",
        "anabranch://127.0.0.1:4100",
        "TCP://127.0.0.1:4100/",
    ],
)
def test_an_address_may_have_a_scheme(text: str) -> None:
    assert parse_address(text) == Address("127.0.0.1", 4100)


def test_an_address_with_a_scheme_may_be_ipv6() -> None:
    assert parse_address("tcp://[::1]:4100") == Address("::1", 4100)


def test_another_scheme_is_an_error_with_the_remedy() -> None:
    with pytest.raises(LocalError, match=r"unknown scheme 'http'; write it as host:port"):
        parse_address("http://127.0.0.1:4100")
    with pytest.raises(LocalError, match="no port"):
        parse_address("tcp://127.0.0.1")


def test_a_connection_is_awaited_or_entered() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            client = await connect(f"tcp://{a.address}")
            assert isinstance(client, Client)
            await client.close()
            async with connect(a.address) as entered:
                assert (await entered.publish({"n": 1})).sequence == 1
            assert entered.is_closed
            async with await connect(a.address) as awaited:
                assert awaited.is_connected
            assert awaited.is_closed

    run(story)


def test_a_connection_that_was_not_awaited_says_how_to_write_it() -> None:
    connecting = connect("127.0.0.1:1")
    with pytest.raises(AttributeError, match=r"`client = await anabranch\.connect\(…\)`"):
        _ = connecting.publish  # type: ignore[attr-defined]
    connecting.close()


def test_addresses_in_a_list_are_an_error() -> None:
    with pytest.raises(LocalError, match="of type list; give each address as an argument"):
        connect_blocking(["127.0.0.1:4100"])  # type: ignore[arg-type]


def test_a_connection_that_fails_raises_on_entering() -> None:
    async def story() -> None:
        options = ClientOptions(connect_within_s=0.05)
        with pytest.raises(ConnectError, match=r"refused; start the network \(`anabranch up"):
            async with connect("127.0.0.1:1", options=options):
                pytest.fail("connected")

    run(story)


def network_file(folder: Path, clients: int, name: str = "test-net") -> Path:
    path = folder / "network.toml"
    path.write_text(
        f'[network]\nname = "{name}"\n[tree]\na = []\n'
        f"[brokers.a]\nclients = {clients}\nobserve = 65535\n"
    )
    return path


def test_a_network_file_replaces_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with network("a") as (a,):
            path = network_file(tmp_path, a.port)
            async with connect(network_file=path) as client:
                assert (client.broker, client.network) == ("a", "test-net")
            monkeypatch.setenv("ANABRANCH_NETWORK", str(path))
            async with connect() as client:
                assert client.broker == "a"

    run(story)


def test_a_network_file_beside_addresses_names_the_network(tmp_path: Path) -> None:
    async def story() -> None:
        async with network("a") as (a,):
            path = network_file(tmp_path, 1, name="other")
            options = ClientOptions(connect_within_s=0.2)
            with pytest.raises(ConnectError, match="network 'other' does not match 'test-net'"):
                await connect(a.address, network_file=path, options=options)

    run(story)


def test_nothing_to_connect_to_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANABRANCH_NETWORK", raising=False)
    with pytest.raises(LocalError, match="ANABRANCH_NETWORK"):
        connect_blocking()


def test_a_blocking_client_reads_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anabranch.embedded() as brokers:
        with brokers.connect_blocking() as client:
            name = client.network
        port = int(brokers.addresses[0].rpartition(":")[2])
        path = network_file(tmp_path, port, name=name)
        monkeypatch.setenv("ANABRANCH_NETWORK", str(path))
        with connect_blocking() as client:
            client.publish({"n": 1})
