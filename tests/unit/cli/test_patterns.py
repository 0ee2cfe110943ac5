"""`anabranch pattern`, and `sub` with patterns, against brokers in this process."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import anabranch
from anabranch.cli.main import app
from tests.node_parts import CHAIN, address, config, running

RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 5 s"


@pytest.fixture(scope="module")
def network() -> Iterator[anabranch.Embedded]:
    with anabranch.embedded() as running:
        yield running


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def swing(client: anabranch.BlockingClient, symbol: str) -> None:
    client.publish({"symbol": symbol, "price": 10, "note": "two words"})
    client.publish({"symbol": symbol, "price": 40}, payload=b"xy")


def test_matches_of_a_defined_pattern_are_lines_of_json_or_for_people(
    network: anabranch.Embedded,
) -> None:
    where = network.addresses[0]
    defined = invoke("pattern", "define", where, "rise", RISE, "--json")
    assert defined.exit_code == 0, defined.output
    document = json.loads(defined.stdout)
    assert (document["pattern"], document["text"]) == ("rise", str(anabranch.Pattern.parse(RISE)))
    for form in ("json", "table"):
        with anabranch.connect_blocking(where, name=f"sub-{form}") as client:
            client.matches("rise", durable=form)
            swing(client, form)
        result = invoke(
            "sub", where, "--matches", "rise", "--durable", form, "--count", "1", "--format", form
        )
        assert result.exit_code == 0, result.output
        assert result.stderr == "1 match\n"
        if form == "json":
            match = json.loads(result.stdout)
            assert match["pattern"] == "rise"
            assert match["is_whole"]
            assert [each["part"] for each in match["events"]] == ["low", "high"]
            assert [each["attributes"]["price"] for each in match["events"]] == [10, 40]
            assert match["events"][1]["payload"] == "eHk="
            ticks = {(each["part"], each["stream"], each["tick"]) for each in match["events"]}
            assert set(map(tuple, match["identity"])) == ticks
        else:
            head, line = result.stdout.splitlines()
            assert head.split() == ["time", "pattern", "events"]
            assert 'symbol=table price=10 note="two words"; high: ' in line
            assert line.endswith("symbol=table price=40 (+2 bytes)")
        ended = invoke("sub", where, "--matches", "rise", "--durable", form, "--unsubscribe")
        assert ended.exit_code == 0, ended.output
    dropped = invoke("pattern", "drop", where, "rise")
    assert (dropped.exit_code, dropped.stdout) == (0, "dropped pattern 'rise'\n")


def test_a_pattern_is_detected_while_sub_runs(network: anabranch.Embedded) -> None:
    where = network.addresses[0]
    over = threading.Event()

    def publish() -> None:
        with anabranch.connect_blocking(where, name="feed") as client:
            while not over.is_set():
                swing(client, "A")

    feed = threading.Thread(target=publish)
    feed.start()
    try:
        result = invoke("sub", where, "--pattern", RISE + " LAST", "--count", "2")
    finally:
        over.set()
        feed.join()
    assert result.exit_code == 0, result.output
    assert [len(json.loads(line)["events"]) for line in result.stdout.splitlines()] == [2, 2]


def test_a_durable_pattern_goes_on_between_runs_and_is_ended_by_name(
    network: anabranch.Embedded,
) -> None:
    where = network.addresses[0]
    pattern = ("--pattern", RISE, "--durable", "swings")
    with anabranch.connect_blocking(where, name="sub-swings") as client:
        client.subscribe_pattern(RISE, durable="swings")
        swing(client, "B")
    result = invoke("sub", where, *pattern, "--count", "1")
    assert json.loads(result.stdout)["pattern"] == "swings"
    other = invoke("sub", where, "--pattern", f"{RISE} FIRST", "--durable", "swings")
    assert (other.exit_code, "there is another pattern 'swings'" in other.stderr) == (2, True)
    assert invoke("sub", where, *pattern, "--unsubscribe").exit_code == 0
    gone = invoke("sub", where, *pattern, "--unsubscribe")
    assert (gone.exit_code, "refused" in gone.stderr) == (2, True)
    unknown = invoke("pattern", "drop", where, "swings")
    assert (unknown.exit_code, "no broker has a pattern 'swings'" in unknown.stderr) == (2, True)


def test_an_id_that_is_said_to_be_new_is_taken_at_once(network: anabranch.Embedded) -> None:
    where = network.addresses[0]
    assert invoke("pattern", "define", where, "fresh", RISE, "--new").exit_code == 0
    assert invoke("pattern", "drop", where, "fresh").exit_code == 0


@pytest.mark.parametrize("command", [("pattern", "list"), ("status",)])
def test_a_port_for_clients_is_told_from_a_broker_that_is_down(
    network: anabranch.Embedded, command: tuple[str, ...]
) -> None:
    result = invoke(*command, network.addresses[0])
    assert result.exit_code == 1
    assert "does not speak HTTP" in " ".join(result.output.split())
    assert "does not answer" not in result.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("sub", "ADDRESS", "--pattern", "a:{x = } WITHIN 2 s"), "at position 7"),
        (("sub", "ADDRESS", "--pattern", ""), "an empty pattern"),
        (("sub", "ADDRESS", "--pattern", "a:{x = 1} THEN b:{x = 2}"), "WITHIN"),
        (("sub", "ADDRESS", "--pattern", RISE, "--matches", "x"), "are mutually exclusive"),
        (("sub", "ADDRESS", "--pattern", RISE, "--since", "1h"), "from now on"),
        (("sub", "ADDRESS", "--matches", "x", "--best-effort"), "apply to events"),
        (("sub", "ADDRESS", "TRUE", "--pattern", RISE), "invalid address 'TRUE'; --pattern"),
        (("sub", "ADDRESS", RISE), "filters in braces belong to a pattern"),
        (("sub", "ADDRESS", "TRUE", "--placement", "cost"), "requires --pattern"),
        (("pattern", "define", "ADDRESS", "x"), "give an id and a pattern"),
        (("pattern", "define", "x"), "give an id and a pattern"),
        (("pattern", "define", "ADDRESS", "x", "{price >} WITHIN 2 s"), "at position 8"),
        (
            ("pattern", "define", "ADDRESS", "x", RISE, "--lasts", "19"),
            "--lasts 19 is too short: give at",
        ),
        (("pattern", "define", "x", RISE), "give the address of a broker"),
        (("pattern", "drop", "ADDRESS"), "give the id"),
        (("pattern", "drop", "ADDRESS", "never"), "no broker has a pattern 'never'"),
        (("pattern", "list"), "give --network FILE or"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    network: anabranch.Embedded, arguments: tuple[str, ...], problem: str
) -> None:
    result = invoke(*(each.replace("ADDRESS", network.addresses[0]) for each in arguments))
    assert result.exit_code == 2, result.output
    assert problem in result.stderr
    # The text of a wrong filter or pattern follows, with a caret, if the position is known.
    first, *marked = result.stderr.splitlines()
    assert len(marked) == (2 if " at position " in first and "empty" not in first else 0)


def test_list_asks_all_brokers_and_says_who_is_silent(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("z", tmp_path, CHAIN)) as z,
            running(config("m", tmp_path, CHAIN, z)) as m,
            running(config("a", tmp_path, CHAIN, m)) as a,
        ):
            ports = [str(address(node, "observe")) for node in (a, m, z)]
            none = await asyncio.to_thread(invoke, "pattern", "list", *ports)
            assert (none.exit_code, none.stdout) == (0, "no patterns\n")
            async with await anabranch.connect(str(address(a, "clients")), name="u") as client:
                await client.define_pattern("rise", RISE)
                await client.define_pattern("once", "e:{price > 0} WITHIN 1 s", lasts_s=60)
                await client.publish({"symbol": "A", "price": 5})
                shown = await asyncio.to_thread(invoke, "pattern", "list", *ports)
                rows = [line.split() for line in shown.stdout.splitlines()]
                assert rows[0][:3] == ["pattern", "at", "state"]
                assert [row[:3] for row in rows[1:]] == [
                    ["once", "a", "active"],
                    ["rise", "a", "active"],
                ]
                silent = ("pattern", "list", "--json", *ports, "127.0.0.1:1")
                told = await asyncio.to_thread(invoke, *silent)
                assert (told.exit_code, "127.0.0.1:1" in told.stderr) == (1, True)
                documents = [json.loads(line) for line in told.stdout.splitlines()]
                assert [each["lasts_s"] for each in documents] == [60, 0]
                assert {each["streams"] for each in documents} == {2}
                # It is found at a; z cannot say that it has it.
                again = ("pattern", "define", str(address(z, "clients")), "rise", RISE)
                found = await asyncio.to_thread(invoke, *again)
                assert "defined pattern 'rise' through z; " in found.stdout
                found = await asyncio.to_thread(invoke, *again, "--json")
                assert json.loads(found.stdout) == {
                    "pattern": "rise",
                    "asked": "z",
                    "text": str(anabranch.Pattern.parse(RISE)),
                }

    asyncio.run(story())
