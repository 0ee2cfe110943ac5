"""The observe port: pages for monitors, and what happens to those who ask badly."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from anabranch import ClientOptions, ConnectError, connect
from anabranch.core.routing.contract import MeshReport
from anabranch.devnet.observe import ask as local_ask
from anabranch.model.errors import LocalError
from anabranch.node.metrics import Histogram
from anabranch.node.node import Node
from anabranch.node.observe_port import CONNECTIONS_MAX, REQUEST_BYTES_MAX
from anabranch.node.status import Status
from tests.node_parts import RawClient, Stranger, address, chain, config, running, until

SAMPLE = re.compile(r'(anabranch_\w+)(\{\w+="[^"]*"(?:,\w+="[^"]*")*\})? (\S+)')


async def ask(node: Node, request: str) -> tuple[str, str]:
    """The first line of the answer, and its body."""
    stranger = await Stranger.at(address(node, "observe"))
    stranger.send(request.encode())
    answer = (await stranger.end()).decode()
    await stranger.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head.split("\r\n")[0], body


async def get(node: Node, path: str) -> str:
    line, body = await ask(node, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert line == "HTTP/1.1 200 OK"
    return body


def test_status_tells_links_sessions_streams_and_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (a, m, z):
            client = await RawClient.at(z, "c")
            await client.subscribe("dear", "price > 10", quality="durable", streams=2)
            publisher = await RawClient.at(a, "p")
            publisher.publish({"price": 11}, {"price": 9})
            await until(client.events)
            status = msgspec.json.decode(await get(z, "/status"), type=Status)
            assert (status.broker, status.network, status.state) == ("z", "shop", "ready")
            assert [(link.peer, link.is_up) for link in status.links] == [("m", True)]
            assert (status.sessions, status.subscriptions) == (1, 1)
            assert {stream.stream for stream in status.streams} == {"a", "z"}
            assert [cursor.subscription for cursor in status.cursors] == ["dear"]
            assert status.cursors[0].is_connected
            origin = msgspec.json.decode(await get(a, "/status"), type=Status)
            assert origin.log is not None
            assert origin.log.head >= 2
            assert "z" in origin.log.vector
            relay = msgspec.json.decode(await get(m, "/status"), type=Status)
            assert (relay.log, relay.is_edge, len(relay.links)) == (None, False, 2)

    asyncio.run(story())


def test_a_broker_of_a_mesh_tells_trees_branches_advertisements_and_costs(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path, routing="mesh") as (a, m, z):
            client = await RawClient.at(z, "c")
            await client.subscribe("dear", "price > 10", streams=2)
            publisher = await RawClient.at(a, "p")
            publisher.publish({"price": 11}, {"price": 9})
            await until(client.events)
            await until(lambda: known(m).advertisements == 1)
            # Origin a advertises everything, z nothing; m knows their first trees, and edges there.
            assert (known(m).trees, known(m).trees_lost, known(m).lost) == (2, 0, ())
            assert (known(m).branches, known(m).origins) == (2, 2)
            assert known(m).costs.keys() == {"a", "z"}
            relay = msgspec.json.decode(await get(m, "/status"), type=Status)
            assert relay.mesh is not None
            assert relay.routing_counters["copies_sent"] > 0
            text = await get(m, "/metrics")
            assert "anabranch_mesh_trees 2.0\n" in text
            assert "anabranch_mesh_trees_lost 0.0\n" in text
            assert "anabranch_mesh_hop_bound_fired_total 0.0\n" in text
            assert 'anabranch_mesh_link_cost{peer="z"} ' in text
            await client.close()
            await publisher.close()

    asyncio.run(story())


def known(node: Node) -> MeshReport:
    mesh = node.status().mesh
    assert mesh is not None
    return mesh


def test_a_broker_of_a_tree_tells_nothing_of_a_mesh(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            assert node.status().mesh is None
            assert "mesh" not in await get(node, "/metrics")

    asyncio.run(story())


def test_metrics_are_samples_of_families_that_are_told_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (a, _, z):
            client = await RawClient.at(z, "c")
            await client.subscribe("dear", "price > 10", streams=2)
            publisher = await RawClient.at(a, "p")
            publisher.publish({"price": 11}, {"price": 9})
            await until(client.events)
            text = await get(a, "/metrics")
            lines = text.splitlines()
            samples = [SAMPLE.fullmatch(line) for line in lines if not line.startswith("#")]
            assert all(samples)
            found = {match[1] + (match[2] or ""): float(match[3]) for match in samples if match}
            assert len(found) == len(samples)
            assert found["anabranch_events_taken_total"] == 2
            assert found["anabranch_events_forwarded_total"] == 1
            assert found['anabranch_link_is_up{peer="m"}'] == 1
            assert found["anabranch_step_seconds_count"] > 0
            assert found["anabranch_sync_seconds_count"] > 0
            types = [line for line in lines if line.startswith("# TYPE")]
            assert len(types) == len(set(types))

    asyncio.run(story())


def test_staging_and_batches_are_told_without_their_tokens(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path)) as node,
            await connect(str(address(node, "clients"))) as client,
        ):
            await client.stage("t-0", [{"n": 1}, {"n": 2}])
            await client.stage("t-1", [{"n": 3}])
            await client.commit(sink="s", query="q", batch=4, tokens=["t-0"])
            text = await get(node, "/status")
            staging = msgspec.json.decode(text, type=Status).staging
            assert staging is not None
            assert (staging.tokens, staging.sinks, staging.under_way) == (1, 1, 0)
            assert (staging.committed, staging.written) == (1, 2)
            assert staging.size_bytes > 0
            assert "t-1" not in text
            metrics = await get(node, "/metrics")
            assert "\nanabranch_stage_tokens 1.0\n" in metrics
            assert f"\nanabranch_stage_bytes {float(staging.size_bytes)}\n" in metrics
            assert "\nanabranch_batches_under_way 0.0\n" in metrics
            assert "\nanabranch_batches_committed_total 1.0\n" in metrics
            assert "\nanabranch_batch_events_total 2.0\n" in metrics

    asyncio.run(story())


def gone(node: Node) -> bool:
    """Whether it has no patterns any more."""
    told = node.status().patterns
    return told is not None and told.patterns == 0


def test_patterns_are_told_and_count_on_when_they_are_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path)) as node,
            await connect(str(address(node, "clients"))) as client,
        ):
            matches = await client.matches("twice")
            await client.define_pattern("twice", "2 TIMES e:{n > 0} WITHIN 1 h")
            await client.publish_many([{"n": 1}, {"n": 0}, {"n": 2}])
            await matches.get()
            told = msgspec.json.decode(await get(node, "/status"), type=Status).patterns
            assert told is not None
            assert (told.patterns, told.active, told.events, told.reported) == (1, 1, 2, 1)
            assert told.kept >= 2
            (point,) = told.points
            assert (point.pattern, point.started, point.streams) == ("twice", 1, 1)
            assert (point.defined_at, point.text) == ("a", "2 TIMES e:{n > 0} WITHIN 1 h")
            await client.drop_pattern("twice")
            await until(lambda: gone(node))
            metrics = await get(node, "/metrics")
            assert "\nanabranch_patterns 0.0\n" in metrics
            assert "\nanabranch_pattern_matches_total 1.0\n" in metrics
            assert "\nanabranch_pattern_events_total 2.0\n" in metrics
            assert "\nanabranch_pattern_late_total 0.0\n" in metrics

    asyncio.run(story())


def test_health_is_ok_while_it_serves(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            assert await get(node, "/health") == "ok\n"
            assert await get(node, "/health?verbose") == "ok\n"
            node.sessions.closed_because = "the broker is stopping"
            line, body = await ask(node, "GET /health HTTP/1.1\r\n\r\n")
            assert (line, body) == ("HTTP/1.1 503 Service Unavailable", "stopping\n")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("request_text", "answer"),
    [
        ("GET /nowhere HTTP/1.1\r\n\r\n", "404"),
        ("POST /status HTTP/1.1\r\n\r\n", "405"),
        ("GET /status HTTP/1.1\r\n\r\n", "400"),
        ("GET /status HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", "400"),
        ("GET\r\n\r\n", "400"),
        ("\x00\x01\r\n\r\n", "400"),
        ("\x00\x00\x00\x20 what a client says first", "400"),
        (f"GET /{'x' * 2 * REQUEST_BYTES_MAX} HTTP/1.1\r\n\r\n", "431"),
    ],
)
def test_a_bad_request_is_answered_with_its_fault(
    tmp_path: Path, request_text: str, answer: str
) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            line, _ = await ask(node, request_text)
            assert line.split(" ")[1] == answer
            assert await get(node, "/health") == "ok\n"

    asyncio.run(story())


def test_a_client_that_comes_here_is_told_to_use_another_port(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            place = str(address(node, "observe"))
            options = ClientOptions(connect_within_s=1.0, pause_first_s=9)
            with pytest.raises(ConnectError, match=f"{place}: .* use the port for clients$"):
                await connect(place, options=options)

    asyncio.run(story())


def test_a_head_request_gets_no_body(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            line, body = await ask(node, "HEAD /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (line, body) == ("HTTP/1.1 200 OK", "")

    asyncio.run(story())


async def code_of(node: Node, page: str, *fields: str) -> int:
    """The code of the answer to a request with these fields."""
    lines = "".join(f"{field}\r\n" for field in fields)
    line, _ = await ask(node, f"GET {page} HTTP/1.1\r\n{lines}\r\n")
    return int(line.split(" ")[1])


@pytest.mark.parametrize("page", ["/health", "/status"])
def test_idle_connections_do_not_keep_a_monitor_out(tmp_path: Path, page: str) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            place = address(node, "observe")
            idle = [await Stranger.at(place) for _ in range(CONNECTIONS_MAX)]
            await until(lambda: len(node._observe_port._connections) == CONNECTIONS_MAX)
            assert await get(node, page)
            # It was the oldest that had to go.
            assert await idle[0].end() == b""
            idle[-1].send(b"GET /health HTTP/1.1\r\n\r\n")
            assert (await idle[-1].end()).endswith(b"ok\n")
            for each in idle:
                await each.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:4102",
        "[::1]:4102",
        "192.0.2.7",
        "localhost",
        "LOCALHOST.:80",
        "broker.example.org:4102",
    ],
)
def test_a_broker_is_asked_by_its_addresses_and_names(tmp_path: Path, host: str) -> None:
    async def story() -> None:
        given = config("a", tmp_path, observe_hosts=("broker.example.org",))
        async with running(given) as node:
            assert await code_of(node, "/status", f"Host: {host}") == 200

    asyncio.run(story())


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil", ""])
def test_a_web_page_cannot_read_a_status_by_a_name_of_its_own(tmp_path: Path, host: str) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            for page in "/status", "/metrics":
                assert await code_of(node, page, f"Host: {host}") == 421
            assert await code_of(node, "/health", f"Host: {host}") == 200
            request = f"GET /status HTTP/1.1\r\nHost: {host}\r\n\r\n"
            assert "observe_hosts" in (await ask(node, request))[1]

    asyncio.run(story())


def test_with_a_token_only_who_shows_it_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        token = "a-secret-of-some-length"
        path = tmp_path / "token"
        path.touch(mode=0o600)
        path.write_text(f"{token}\n")
        async with running(config("a", tmp_path, observe_token_file=path)) as node:
            here = "Host: localhost"
            for page in "/status", "/metrics":
                assert await code_of(node, page, here) == 401
                assert await code_of(node, page, here, "Authorization: Bearer other") == 401
                assert await code_of(node, page, here, f"Authorization: Basic {token}") == 401
                assert await code_of(node, page, here, f"Authorization: Bearer {token}") == 200
                assert await code_of(node, page, here, f"authorization: bearer {token}") == 200
                evil = ("Host: evil.example", f"Authorization: Bearer {token}")
                assert await code_of(node, page, *evil) == 421
            assert await code_of(node, "/health") == 200
            shown = await local_ask("127.0.0.1", address(node, "observe").port, "/status", path)
            assert shown is not None
            assert shown[0] == 200
            assert token.encode() not in shown[1]

    asyncio.run(story())


def test_a_token_file_that_others_may_read_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a-secret-of-some-length")
    path.chmod(0o640)

    async def story() -> None:
        with pytest.raises(LocalError, match=r"\(mode 0640\); run `chmod 600`"):
            await Node(config("a", tmp_path, observe_token_file=path)).start()

    asyncio.run(story())


def test_a_histogram_counts_what_is_at_or_below_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.add(value)
    assert histogram.cumulative() == [(1.0, 2), (2.0, 3)]
    assert (histogram.count, histogram.total) == (4, 6.0)
