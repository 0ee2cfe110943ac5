"""`anabranch sub --since … --archive DIR`: what the logs have forgotten comes from an archive."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import anabranch
from anabranch.cli.main import app
from anabranch.model.limits import Limits
from anabranch.spark.archive.manifest import read_state
from tests.archive_parts import LOSSY, archived, followed
from tests.spark_parts import PAIR, network_of


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def printed(result: Result) -> list[tuple[object, ...]]:
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [(each["stream"], each["tick"], each["attributes"]["n"]) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("since", ["beginning", "a=150", "2020-01-01"])
def test_sub_begins_in_the_archive_where_the_log_no_longer_reaches(
    tmp_path: Path, since: str
) -> None:
    with followed(tmp_path, LOSSY) as (network, follower):
        directory = tmp_path / "archive"
        with network.connect_blocking(name="feed") as client:
            for first in range(0, 2_400, 600):
                client.publish_many({"n": n} for n in range(first, first + 600))
                archived(network, directory)
            client.publish_many({"n": n} for n in range(2_400, 2_500))
        expected = [(s, tick, event["n"]) for s, tick, _, event in follower.until(2_500)]
        expected = [each for each in expected if since != "a=150" or each[1] > 150]
        result = invoke(
            "sub", network.addresses[0], "TRUE", "--since", since, "--archive", str(directory),
            "--count", str(len(expected)),
        )  # fmt: skip
        assert printed(result) == expected
        assert "missing" not in result.stderr


def test_a_durable_sub_takes_the_archive_first_and_then_goes_on_where_it_stood(
    tmp_path: Path,
) -> None:
    with network_of(tmp_path, LOSSY) as network:
        directory = tmp_path / "archive"
        with network.connect_blocking(name="feed") as client:
            for first in (0, 500, 1_000):
                client.publish_many({"n": n} for n in range(first, first + 500))
                archived(network, directory)
            asked = ("sub", network.addresses[0], "n >= 0", "--durable", "d", "--since")
            more = ("beginning", "--archive", str(directory), "--count")
            first_run = invoke(*asked, *more, "1500")
            assert [each[2] for each in printed(first_run)] == [*range(1_500)]
            client.publish({"n": 1_500})
            # It was not made, because the archive was enough; so it begins behind the archive.
            second = invoke(*asked, *more, "1501")
            assert [each[2] for each in printed(second)] == [*range(1_501)]
            client.publish({"n": 1_501})
            third = invoke(*asked, *more, "1")
            assert [each[2] for each in printed(third)] == [1_501]
            assert "resumes from its position" in third.stderr


def test_sub_tells_which_ticks_nobody_has_and_goes_on_if_it_may(tmp_path: Path) -> None:
    with network_of(tmp_path, LOSSY) as network:
        directory = tmp_path / "archive"
        with network.connect_blocking(name="feed") as client:
            client.publish_many({"n": n} for n in range(300))
            archived(network, directory)
            client.publish_many({"n": n} for n in range(300, 2_000))
        with anabranch.Fetcher(*network.addresses) as fetcher:
            oldest = fetcher.describe().oldest
        last = read_state(directory).ranges["a"][1]
        gap = f"ticks {last + 1} to {oldest - 1} of stream 'a'"
        asked = ["sub", network.addresses[0], "TRUE", "--since", "beginning"]
        asked += ["--archive", str(directory), "--count", "310"]
        refused = CliRunner().invoke(app, asked)
        assert refused.exit_code == 2
        assert gap in refused.output
        ticks = [tick for _, tick, _ in printed(invoke(*asked, "--missing", "report"))]
        assert ticks[:300] == [tick for tick in range(1, last + 1) if tick in ticks]
        assert ticks[300:] == [*range(oldest, oldest + 10)]


def test_events_beyond_the_usual_limits_come_from_an_archive_as_from_a_log(
    tmp_path: Path,
) -> None:
    text = PAIR + "[limits]\nvalue_bytes_max = 200_000\n"
    with network_of(tmp_path, text) as network:
        limits = Limits(value_bytes_max=200_000)
        address = network.addresses[0]
        with anabranch.connect_blocking(address, name="feed", limits=limits) as client:
            client.publish({"n": 1, "long": "x" * 100_000})
        archived(network, tmp_path / "archive")
        asked = ("--since", "beginning", "--archive", str(tmp_path / "archive"), "--count", "1")
        result = invoke("sub", address, "TRUE", *asked)
        assert [each[2] for each in printed(result)] == [1]


def test_an_archive_is_for_what_was_before(tmp_path: Path) -> None:
    asked = ["sub", "127.0.0.1:1", "TRUE", "--archive", str(tmp_path)]
    for more, said in ([], "--since"), (["--since", "1d", "--best-effort"], "--best-effort starts"):
        result = CliRunner().invoke(app, [*asked, *more])
        assert result.exit_code == 2
        assert said in result.output
