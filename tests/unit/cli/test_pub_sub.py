"""`anabranch pub` and `anabranch sub`, against a broker in this process."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import anabranch
from anabranch.cli.main import app


@pytest.fixture(scope="module")
def network() -> Iterator[anabranch.Embedded]:
    with anabranch.embedded() as running:
        yield running


@pytest.fixture
def address(network: anabranch.Embedded) -> str:
    return network.addresses[0]


def invoke(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def keep(network: anabranch.Embedded, durable: str, filter: str = "TRUE") -> None:
    """Make the durable subscription that a later `sub` comes back to."""
    with anabranch.connect_blocking(*network.addresses, name=f"sub-{durable}") as client:
        client.subscribe(filter, durable=durable, new=True).wait_started(timeout=30)


def read(address: str, durable: str, count: int, filter: str = "TRUE") -> list[dict[str, object]]:
    result = invoke("sub", address, filter, "--durable", durable, "--count", str(count))
    assert result.exit_code == 0, result.output
    found = []
    for line in result.stdout.splitlines():
        document = json.loads(line)
        assert isinstance(document, dict)
        found.append(document)
    return found


def attributes(documents: list[dict[str, object]]) -> list[object]:
    return [document["attributes"] for document in documents]


def test_arguments_are_published_with_their_types(network: anabranch.Embedded) -> None:
    keep(network, "arguments")
    published = invoke(
        "pub",
        network.addresses[0],
        "symbol=IBM",
        "price=12.5",
        "volume=7",
        "urgent=true",
        'zip="01234"',
        "--payload",
        "hello",
        "--priority",
        "9",
    )
    assert published.exit_code == 0, published.output
    assert published.stdout.startswith("published 1 event at ")
    (document,) = read(network.addresses[0], "arguments", 1)
    assert document["attributes"] == {
        "symbol": "IBM",
        "price": 12.5,
        "volume": 7,
        "urgent": True,
        "zip": "01234",
    }
    assert (document["payload"], document["priority"]) == ("aGVsbG8=", 9)
    assert {"id", "stream", "tick", "time_ns", "timestamp_ns"} < document.keys()


def test_json_lines_are_published_in_order(network: anabranch.Embedded, tmp_path: Path) -> None:
    keep(network, "lines")
    lines = "".join(f'{{"n": {n}}}\n\n' for n in range(300)) + '{"n": 300}'
    (tmp_path / "events.jsonl").write_text(lines)
    for source, stdin in (("-", lines), (str(tmp_path / "events.jsonl"), "")):
        result = invoke("pub", *network.addresses, "--json-lines", source, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["published"] == 301
    found = attributes(read(network.addresses[0], "lines", 602))
    assert found == [{"n": n} for n in range(301)] * 2


def test_a_table_is_published_row_by_row(network: anabranch.Embedded, tmp_path: Path) -> None:
    keep(network, "table")
    table = tmp_path / "quotes.csv"
    table.write_text('symbol,price,note\nIBM,12.5,\nHPQ,7,"a, b"\n', encoding="utf-8-sig")
    result = invoke(
        "pub",
        network.addresses[0],
        "--csv",
        str(table),
        "region=eu",
        "--repeat",
        "2",
        "--rate",
        "500",
    )
    assert result.exit_code == 0, result.output
    rows = [
        {"region": "eu", "symbol": "IBM", "price": 12.5},
        {"region": "eu", "symbol": "HPQ", "price": 7, "note": "a, b"},
    ]
    assert attributes(read(network.addresses[0], "table", 4)) == rows * 2


@pytest.mark.parametrize(
    ("arguments", "stdin", "problem"),
    [
        ((), "", "nothing to publish"),
        (("ADDRESS", "price"), "", "'price' is neither an address"),
        (("price=1",), "", "give the address of a broker"),
        (("ADDRESS", "--json-lines", "-"), "", "there is no event"),
        (("ADDRESS", "--json-lines", "-"), '{"n": 1}\n[2]\n', "stdin, line 2"),
        (("ADDRESS", "--json-lines", "-"), '{"n": null}\n', "stdin, line 1"),
        (("ADDRESS", "--json-lines", "-", "--repeat", "2"), '{"n": 1}\n', "only once"),
        (("ADDRESS", "--json-lines", "gone.jsonl"), "", "gone.jsonl"),
        (("ADDRESS", "--csv", "gone.csv"), "", "gone.csv"),
        (("127.0.0.1:1", "n=1", "--within", "1"), "", "127.0.0.1:1: connection refused"),
        (("10.1.2.3:1", "n=1"), "", "is not on this machine"),
        (("--network", "gone.toml", "n=1"), "", "gone.toml"),
    ],
)
def test_what_cannot_be_published_is_told_in_one_line(
    address: str, arguments: tuple[str, ...], stdin: str, problem: str
) -> None:
    result = invoke("pub", *(a.replace("ADDRESS", address) for a in arguments), stdin=stdin)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("table", "problem"),
    [("a,b\n1\n", "line 2"), ("a\n1,2\n", "line 2"), ('a\n"x\n', "line 2")],
)
def test_a_bad_table_is_told_with_its_line(
    address: str, tmp_path: Path, table: str, problem: str
) -> None:
    (tmp_path / "bad.csv").write_text(table)
    result = invoke("pub", address, "--csv", str(tmp_path / "bad.csv"))
    assert (result.exit_code, problem in result.stderr) == (2, True)


def test_a_table_for_people_has_a_line_for_each_event(network: anabranch.Embedded) -> None:
    keep(network, "people")
    invoke(
        "pub", network.addresses[0], "symbol=IBM", "note=two words", "ok=true", "--payload", "xy"
    )
    result = invoke(
        "sub",
        network.addresses[0],
        "TRUE",
        "--durable",
        "people",
        "--count",
        "1",
        "--format",
        "table",
    )
    head, line = result.stdout.splitlines()
    assert head.split() == ["time", "(UTC)", "stream", "tick", "event"]
    assert line.endswith('symbol=IBM note="two words" ok=true (+2 bytes)')


def test_a_replay_is_asked_for_in_words(network: anabranch.Embedded) -> None:
    keep(network, "keeper")
    for n in (1, 2):
        invoke("pub", network.addresses[0], f"replayed={n}")
    result = invoke("sub", network.addresses[0], "replayed > 0", "--since", "1h", "--count", "2")
    assert [json.loads(line)["attributes"] for line in result.stdout.splitlines()] == [
        {"replayed": 1},
        {"replayed": 2},
    ]
    document = json.loads(result.stdout.splitlines()[0])
    after = f"{document['stream']}={document['tick']}"
    result = invoke("sub", network.addresses[0], "replayed > 0", "--since", after, "--count", "1")
    assert json.loads(result.stdout)["attributes"] == {"replayed": 2}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("ADDRESS",), "give a filter"),
        (("ADDRESS", "price >"), "the filter ends too early"),
        (("ADDRESS", "TRUE", "--since", "yesterday"), "is no time"),
        (("ADDRESS", "TRUE", "--since", "a=x"), "is no stream=tick"),
        (("ADDRESS", "TRUE", "--since", "nowhere=4"), "no stream 'nowhere'"),
        (("ADDRESS", "TRUE", "--unsubscribe"), "say which with --durable"),
        (("localhost", "TRUE"), "has no port"),
        (("TRUE",), "give the address of a broker"),
    ],
)
def test_what_cannot_be_subscribed_is_told_in_one_line(
    address: str, arguments: tuple[str, ...], problem: str
) -> None:
    result = invoke("sub", *(a.replace("ADDRESS", address) for a in arguments))
    assert result.exit_code == 2
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_unsubscribing_ends_a_durable_subscription(network: anabranch.Embedded) -> None:
    keep(network, "over", "n > 1")
    other = invoke("sub", network.addresses[0], "n > 2", "--durable", "over", "--count", "1")
    assert "has another filter" in other.stderr
    ended = invoke("sub", network.addresses[0], "n > 1", "--durable", "over", "--unsubscribe")
    assert ended.exit_code == 0
    keep(network, "over", "n > 2")


def test_an_interrupt_acknowledges_what_was_printed(network: anabranch.Embedded) -> None:
    keep(network, "interrupted")
    invoke("pub", network.addresses[0], "n=1")
    command = [sys.executable, "-m", "anabranch", "sub", *network.addresses, "TRUE"]
    with subprocess.Popen(
        [*command, "--durable", "interrupted"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["attributes"] == {"n": 1}
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (0, b"1 event\n")
    invoke("pub", network.addresses[0], "n=2")
    assert attributes(read(network.addresses[0], "interrupted", 1)) == [{"n": 2}]
