"""`anabranch pub` and `anabranch sub`, against a broker in this process."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import anabranch
from anabranch.cli.connect_options import Way
from anabranch.cli.main import app
from anabranch.cli.output import iso_time
from anabranch.cli.publish import Summary, _print, _Publishing
from anabranch.cli.sources import Item, Source
from anabranch.model.client_frames import Publish
from anabranch.model.event import Event, EventId
from tests.client_parts import Host, frames_of, run, until
from tests.client_parts import network as brokers


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
        client.subscribe(filter, durable=durable, new=True).wait_started(timeout=120)


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
    assert document["time"] == iso_time(int(str(document["time_ns"])))
    assert document["timestamp"] is None or document["timestamp_ns"] != 0


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


def test_declared_timestamps_are_integers_in_every_input(
    network: anabranch.Embedded, tmp_path: Path
) -> None:
    keep(network, "times")
    address, types = network.addresses[0], ("--types", "at=timestamp")
    lines = '{"at": "1970-01-01T00:00:01Z", "note": "1970-01-01T00:00:01Z"}\n{"at": 5}\n{"n": 1}\n'
    for arguments, stdin in (
        (("at=1970-01-01T01:00:00.5+01:00", "note=1970-01-01T00:00:01Z"), ""),
        (("--json-lines", "-"), lines),
        (("--csv", "-"), "at\n1970-01-01 00:00:01.000000001Z\n"),
    ):
        result = invoke("pub", address, *arguments, *types, stdin=stdin)
        assert result.exit_code == 0, result.output
    assert attributes(read(address, "times", 5)) == [
        {"at": 500_000_000, "note": "1970-01-01T00:00:01Z"},
        {"at": 1_000_000_000, "note": "1970-01-01T00:00:01Z"},
        {"at": 5},
        {"n": 1},
        {"at": 1_000_000_001},
    ]


def test_a_json_line_that_is_not_of_its_declared_type_is_told(
    network: anabranch.Embedded, address: str, tmp_path: Path
) -> None:
    keep(network, "mistyped")
    file = tmp_path / "times.jsonl"
    for line, problem in (
        ('{"at": "noon"}', "line 2: at: 'noon' is not a time; expected a time such as 2026"),
        ('{"at": true}', "line 2: at: True is not of type timestamp"),
        ('{"att": 5}', "--types declares 'at', which no input has"),
    ):
        file.write_text(f'{{"n": 1}}\n{line}\n')
        result = invoke("pub", address, "--json-lines", str(file), "--types", "at=timestamp")
        assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr
    invoke("pub", address, "n=4")
    assert attributes(read(address, "mistyped", 1)) == [{"n": 4}]
    types = ("--types", "at=timestamp")
    result = invoke("pub", address, "--json-lines", "-", *types, stdin='{"n": 5}\n')
    assert result.exit_code != 0
    assert "'at', which no input has; 1 event confirmed" in result.stderr


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
        (("ADDRESS", "price = 1"), "", "has a space around its name"),
        (("http://ADDRESS/", "price=1"), "", "has the unknown scheme 'http'"),
        (("price=1",), "", "give the address of a broker"),
        (("ADDRESS", "--json-lines", "-"), "", "contains no events"),
        (("ADDRESS", "--json-lines", "-"), '{"n": 1}\n[2]\n', "stdin, line 2"),
        (("ADDRESS", "--json-lines", "-"), '{"n": null}\n', "stdin, line 1"),
        (("ADDRESS", "--json-lines", "-", "--repeat", "2"), '{"n": 1}\n', "only once"),
        (("ADDRESS", "--json-lines", "gone.jsonl"), "", "gone.jsonl"),
        (("ADDRESS", "--csv", "gone.csv"), "", "gone.csv"),
        (("127.0.0.1:1", "n=1", "--within", "1"), "", "127.0.0.1:1: connection refused; start the"),
        (("10.1.2.3:1", "n=1"), "", "is not on this machine; give --ca with"),
        (("ADDRESS", "n=1", "n=2"), "", "duplicate attribute 'n'"),
        (("ADDRESS", "n=1", "--types", "m=string"), "", "--types declares 'm'"),
        (("ADDRESS", "n=1", "--from-line", "2"), "", "--from-line requires"),
        (("ADDRESS", "--json-lines", "-", "--csv", "-"), "", "mutually exclusive"),
        (("ADDRESS", "--json-lines", "-"), '{"n": 1, "m": ":", "n": 2}\n', "duplicate name 'n'"),
        (("ADDRESS", "--csv", "-"), "a,b,a\n1,2,3\n", "stdin, line 1: duplicate name 'a'"),
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
    [
        (b"a,b\n1\n", "line 2: 1 cell, but the first row has 2"),
        (b"a\n1\n1,2\n", "line 3: 2 cells, but the first row has 1"),
        (b'a\n"x\n', "line 2: unclosed double quote"),
        (b'a\n"x"y\n', "line 2: "),
        (b"a\n1\n\xe4\n", "line 3: byte 1 is not UTF-8"),
        ("a\n1\n".encode("utf-16"), "line 1: byte 1 is not UTF-8"),
        (b"a,,b\n1,2,3\n", "line 1: column 2 has no name"),
        (b"a,b,a\n1,2,3\n", "line 1: duplicate name 'a'"),
        (b"price\n1\nmuch\n", "line 3: price: 'much' is not of type float"),
        (b"at\n2026-01-31T12:00\n", "line 2: at: '2026-01-31T12:00' is a time without a time zone"),
        (b"prise\n1\n", "--types declares 'price', which no input has"),
    ],
)
def test_a_bad_table_is_told_with_its_line(
    address: str, tmp_path: Path, table: bytes, problem: str
) -> None:
    types = ("--types", "price=float") if b"pri" in table else ()
    types = ("--types", "at=timestamp") if table.startswith(b"at") else types
    for source, stdin in (("-", table), (str(tmp_path / "bad.csv"), b"")):
        (tmp_path / "bad.csv").write_bytes(table)
        result = invoke("pub", address, "--csv", source, *types, stdin=stdin)
        assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_a_table_keeps_what_no_number_could_say(
    network: anabranch.Embedded, tmp_path: Path
) -> None:
    keep(network, "kept")
    rows = 'zip,phone,part,price,id\n01234,+4312345,1e5,12.50,7\n,"two\nlines",,1,8\n'
    expected = [
        {"zip": "01234", "phone": "+4312345", "part": "1e5", "price": 12.5, "id": "7"},
        {"phone": "two\nlines", "price": 1.0, "id": "8"},
    ]
    types = ("--types", "id=string,price=float")
    (tmp_path / "kept.csv").write_text(rows)
    for source, stdin in (("-", rows), (str(tmp_path / "kept.csv"), "")):
        result = invoke("pub", *network.addresses, "--csv", source, *types, stdin=stdin)
        assert result.exit_code == 0, result.output
    assert attributes(read(network.addresses[0], "kept", 4)) == expected * 2


def test_a_bad_line_of_a_file_is_found_before_anything_is_published(
    network: anabranch.Embedded, tmp_path: Path
) -> None:
    keep(network, "checked")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    result = invoke("pub", *network.addresses, "--json-lines", str(bad))
    assert (result.exit_code, "no event was published" in result.stderr) == (2, True)
    invoke("pub", *network.addresses, "n=4")
    assert attributes(read(network.addresses[0], "checked", 1)) == [{"n": 4}]


@pytest.mark.parametrize(
    ("option", "lines"),
    [
        ("--json-lines", ['{"n": 1}', '{"n": 2}', "[3]", '{"n": 3}']),
        ("--csv", ["n", "1", '"2"', "3,4", "3"]),
    ],
)
def test_a_bad_line_of_a_pipe_tells_what_is_out_and_where_to_go_on(
    network: anabranch.Embedded, option: str, lines: list[str]
) -> None:
    durable = f"piped{option}"
    keep(network, durable)
    bad = len(lines) - 1
    result = invoke("pub", *network.addresses, option, "-", stdin="\n".join(lines))
    assert result.exit_code == 2
    assert f"stdin, line {bad}: " in result.stderr
    assert f"2 events confirmed; after fixing the error, continue with --from-line {bad}" in (
        result.stderr
    )
    lines[bad - 1] = lines[bad]
    mended = "\n".join(lines[:bad])
    result = invoke("pub", *network.addresses, option, "-", "--from-line", str(bad), stdin=mended)
    assert result.exit_code == 0, result.output
    assert attributes(read(network.addresses[0], durable, 3)) == [{"n": n} for n in (1, 2, 3)]


#: The record of a trace when the third event is confirmed.
CONFIRMED = re.compile(r'"Confirmed".*"sequence":3}')


def interrupt_pub(address: str, *options: str, text: str) -> tuple[int, str]:
    """Interrupt `pub` of three lines from a pipe that stays open, once all are confirmed."""
    trace = Path(options[0])
    command = [sys.executable, "-m", "anabranch", "pub", address, "--trace", *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while not (trace.exists() and CONFIRMED.search(trace.read_text())):
            assert time.monotonic() < deadline
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    return process.returncode, told


@pytest.mark.parametrize(
    ("option", "text", "line"),
    [
        ("--json-lines", '{"n": 1}\n\n{"n": 2}\n{"n": 3}\n', 5),
        ("--csv", "n\n1\n2\n3\n", 5),
    ],
)
def test_an_interrupted_pub_tells_what_is_confirmed_and_where_to_go_on(
    network: anabranch.Embedded, tmp_path: Path, option: str, text: str, line: int
) -> None:
    durable = f"broken-off{option}"
    keep(network, durable)
    trace = str(tmp_path / "trace.jsonl")
    code, told = interrupt_pub(network.addresses[0], trace, option, "-", text=text)
    assert (code, told) == (
        130,
        f"anabranch: interrupted: 3 events confirmed; continue with --from-line {line}\n",
    )
    rest = text + text.splitlines()[-1].replace("3", "4")
    result = invoke("pub", *network.addresses, option, "-", "--from-line", str(line), stdin=rest)
    assert result.exit_code == 0, result.output
    assert attributes(read(network.addresses[0], durable, 4)) == [{"n": n} for n in (1, 2, 3, 4)]


def test_an_interrupt_before_the_first_event_is_told() -> None:
    publishing = _Publishing(Source(given={"n": 1}), Event, 0.0)
    assert publishing.interruption() == "no event was published"


def _has_frames(host: Host, count: int) -> bool:
    return len(frames_of(host, Publish)) == count


def test_an_interrupt_tells_of_events_with_unknown_outcome() -> None:
    async def story() -> None:
        async with brokers("a") as (a,):
            a.stall(True)
            publishing = _Publishing(Source(given={}, json_lines="-"), Event, 0.0)
            async with await Way(addresses=[a.address]).connect() as client:
                publishing._client = client
                for line in (1, 2):
                    await publishing._publish(client, Item(line, {"n": line}))
                    await until(partial(_has_frames, a, line))
                client._parts.abandon(anabranch.ClosedError("interrupted"))
            assert publishing.interruption() == (
                "0 events confirmed, 2 with unknown outcome; continue with --from-line 1"
                " (publishes those with unknown outcome again)"
            )

    run(story)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"n": null}', "attribute 'n': null is not a value; leave out an attribute"),
        ('{"m": 1, "n": [1]}', "attribute 'n': an array is not a value; attributes hold no lists"),
        ('{"n": {"m": 1}}', "attribute 'n': an object is not a value; attributes are flat"),
        ('{"n": 1e999}', "attribute 'n': Number out of range"),
        ('{"n": 99999999999999999999}', "attribute 'n' is an integer outside"),
        ("[1]", 'not a JSON object, such as {"price": 12.5}'),
        ('{"n": 1', "not JSON: Expecting ',' delimiter at character 8"),
        ('{"n": 1, "m": [}', "not JSON: Expecting value at character 16"),
        ("{n: 1}", "not JSON: Expecting property name enclosed in double quotes at character 2"),
    ],
)
def test_a_bad_line_of_json_is_told_with_its_line_and_attribute(
    address: str, line: str, problem: str
) -> None:
    result = invoke("pub", address, "--json-lines", "-", stdin=f'{{"n": 1}}\n{line}\n')
    assert result.exit_code == 2
    assert f"stdin, line 2: {problem}" in result.stderr


def test_pub_applies_the_limits_of_the_network_and_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "wide.toml"
    limits = "[limits]\nvalue_bytes_max = 100_000\npayload_bytes_max = 10\n"
    file.write_text(f'[network]\nname = "wide"\n[tree]\na = []\n{limits}')
    lines = [json.dumps({"n": n, "text": "x" * n}) for n in (1, 90_000, 100_001, 4)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    problem = "line 3: attribute 'text' has 100001 bytes; at most 100000 are allowed"
    with anabranch.embedded(file) as running:
        pub = ("pub", running.addresses[0], "--name", "feed", "--json-lines")
        checked = invoke(*pub, str(tmp_path / "events.jsonl"))
        assert (checked.exit_code, problem in checked.stderr) == (2, True)
        assert "no event was published" in checked.stderr
        piped = invoke(*pub, "-", stdin="\n".join(lines))
        assert (piped.exit_code, problem in piped.stderr) == (2, True)
        assert "2 events confirmed; after fixing the error, continue with --from-line 3" in (
            " ".join(piped.stderr.split())
        )
        again = invoke(*pub, "-", "--from-line", "4", stdin="\n".join(lines))
        assert again.exit_code == 0
        assert "at most 10 are allowed" in invoke(*pub[:4], "n=1", "--payload", "x" * 11).stderr


def test_a_refused_line_between_confirmed_ones_is_not_published_with_them_again() -> None:
    async def story() -> None:
        async with brokers("a") as (a,), anabranch.connect(a.address, name="feed") as client:
            publishing = _Publishing(Source(given={}, json_lines="-"), Event, 0.0)
            publishing._client = client
            refused: asyncio.Future[EventId] = asyncio.get_running_loop().create_future()
            refused.set_exception(anabranch.ConnectError("refused"))
            for line in (1, 2, 3):
                promise = refused if line == 2 else await client.publish_soon({"n": line})
                publishing._waiting.append((line, promise))
            await client.flush()
            assert publishing._outcome() == (
                "2 events confirmed, up to line 3 and without line 2",
                4,
            )

    run(story)


def test_progress_of_pub_is_shown_on_a_terminal_only(address: str, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"n": 1}\n' * 20)
    command = [sys.executable, "-m", "anabranch", "pub", address, "--rate", "50", "--json-lines"]
    ours, theirs = os.openpty()
    for stderr, is_shown in ((theirs, True), (subprocess.PIPE, False)):
        with subprocess.Popen(
            [*command, str(tmp_path / "events.jsonl")],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "TERM": "xterm"},
        ) as process:
            out, told = process.communicate(timeout=60)
            assert out.startswith(b"published 20 events")
        if is_shown:
            os.close(theirs)
            told = os.read(ours, 65_536)
            os.close(ours)
        assert (b"confirmed" in told, b"/20" in told) == (is_shown, is_shown)
        assert is_shown or told == b""


def test_the_state_of_a_client_is_no_file(address: str, tmp_path: Path) -> None:
    (tmp_path / "z.csv").touch()
    result = invoke("pub", address, "n=1", "--state", str(tmp_path / "z.csv"))
    assert (result.exit_code, "there is a file in its place" in result.stderr) == (2, True)


def test_events_are_counted_by_the_broker_they_went_to() -> None:
    async def story() -> None:
        async with brokers("a", "b") as (a, b):
            source = Source(given={"n": 1}, repeats=300)
            way = Way(addresses=[a.address, b.address])
            work = asyncio.create_task(_Publishing(source, Event, 500.0).run(way))
            await until(lambda: any(len(frames_of(host, Publish)) > 3 for host in (a, b)))
            first, second = (a, b) if frames_of(a, Publish) else (b, a)
            first.cut_clients()
            summary = await work
            assert (summary.published, summary.broker) == (300, second.name)
            assert summary.origins.keys() == {"a", "b"}
            for host in (a, b):
                assert summary.origins[host.name] <= len(host.ever)

    run(story)


def test_the_brokers_of_events_are_told_if_there_are_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    origins = {"a": 22, "b": 78}
    _print(Summary(100, "b", origins, 2.0, 50.0, "p:1:1", "p:2:78"), as_json=False)
    told = capsys.readouterr().out
    assert told == "published 100 events (22 at a, 78 at b) in 2.00 s (50/s); last: p:2:78\n"


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
    assert head.split() == ["time", "stream", "tick", "event"]
    assert datetime.fromisoformat(line.split()[0]).tzinfo is not None
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
        (("ADDRESS", "TRUE", "--since", "yesterday"), "invalid time"),
        (("ADDRESS", "TRUE", "--since", "a=x"), "write STREAM=TICK"),
        (("ADDRESS", "TRUE", "--since", "nowhere=4"), "no stream 'nowhere'"),
        (("ADDRESS", "TRUE", "--unsubscribe"), "requires --durable NAME"),
        (("localhost", "TRUE"), "has no port"),
        (("ADDRESS", "price", "10"), "'price' has no port; write it as host:port"),
        (("ADDRESS", "n =", "1"), "if it is part of the filter, quote the whole filter"),
        (("http://ADDRESS", "TRUE"), "has the unknown scheme 'http'"),
        (("TRUE",), "give the address of a broker"),
    ],
)
def test_what_cannot_be_subscribed_is_told_in_one_line(
    address: str, arguments: tuple[str, ...], problem: str
) -> None:
    result = invoke("sub", *(a.replace("ADDRESS", address) for a in arguments))
    assert result.exit_code == 2
    assert problem in result.stderr
    # The text of a wrong filter follows, with a caret.
    assert len(result.stderr.splitlines()) == (3 if "price >" in arguments else 1)


def test_unsubscribing_ends_a_durable_subscription(network: anabranch.Embedded) -> None:
    keep(network, "over", "n > 1")
    other = invoke("sub", network.addresses[0], "n > 2", "--durable", "over", "--count", "1")
    assert "has another filter" in other.stderr
    ended = invoke("sub", network.addresses[0], "n > 1", "--durable", "over", "--unsubscribe")
    assert (ended.exit_code, ended.stderr) == (0, "deleted durable subscription 'over'\n")
    keep(network, "over", "n > 2")


def test_unsubscribing_what_does_not_exist_is_an_error_and_makes_nothing(address: str) -> None:
    for _ in range(2):
        result = invoke("sub", address, "TRUE", "--durable", "nope", "--unsubscribe")
        assert result.exit_code == 2
        assert "no broker has a durable subscription 'nope'" in result.stderr


def test_a_start_that_an_existing_subscription_does_not_heed_is_told(
    network: anabranch.Embedded,
) -> None:
    keep(network, "holder")
    invoke("pub", network.addresses[0], "old=1")
    command = ("sub", network.addresses[0], "old > 0", "--durable", "stands", "--count", "1")
    first = invoke(*command, "--since", "1h")
    assert (first.exit_code, first.stderr) == (0, "1 event\n")
    invoke("pub", network.addresses[0], "old=2")
    second = invoke(*command, "--since", "beginning")
    assert "note: durable subscription 'stands' exists and resumes" in second.stderr
    assert json.loads(second.stdout)["attributes"] == {"old": 2}
    invoke("pub", network.addresses[0], "old=3")
    assert invoke(*command).stderr == "1 event\n"


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
        _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (0, b"1 event\n")
    invoke("pub", network.addresses[0], "n=2")
    assert attributes(read(network.addresses[0], "interrupted", 1)) == [{"n": 2}]


def test_what_nobody_reads_any_more_is_not_acknowledged(network: anabranch.Embedded) -> None:
    keep(network, "headed")
    invoke("pub", network.addresses[0], "n=1")
    command = [sys.executable, "-m", "anabranch", "sub", *network.addresses, "TRUE"]
    with subprocess.Popen(
        [*command, "--durable", "headed"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["attributes"] == {"n": 1}
        process.stdout.close()
        invoke("pub", network.addresses[0], "n=2")
        assert (process.stderr.read(), process.wait(30)) == (b"", 141)
    assert attributes(read(network.addresses[0], "headed", 1)) == [{"n": 2}]


@pytest.mark.parametrize("arguments", [("sub", "TRUE"), ("sub", "--matches", "none")])
def test_what_nobody_reads_any_more_ends_without_another_event(
    network: anabranch.Embedded, arguments: tuple[str, ...]
) -> None:
    command, *rest = arguments
    with subprocess.Popen(
        [sys.executable, "-m", "anabranch", command, *network.addresses, *rest, "--format=table"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"time")
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 141)


def test_without_an_address_the_environment_names_the_network_file(
    network: anabranch.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANABRANCH_NETWORK", raising=False)
    told = invoke("pub", "n=1")
    assert told.exit_code == 2
    assert "ANABRANCH_NETWORK" in told.stderr
    port = network.addresses[0].rpartition(":")[2]
    file = tmp_path / "here.toml"
    file.write_text(f'[network]\nname = "local"\n[tree]\na = []\n[brokers.a]\nclients = {port}\n')
    monkeypatch.setenv("ANABRANCH_NETWORK", str(file))
    # Only the address is checked here: the embedded network has another name.
    assert "local" in invoke("pub", "n=1", "--within", "0.1").stderr
    named = anabranch.connect_blocking(*network.addresses, name="asks")
    file.write_text(file.read_text().replace('"local"', f'"{named.network}"'))
    named.close()
    assert invoke("pub", "n=1").exit_code == 0
    assert invoke("status").exit_code == 2
