"""`anabranch replication show`, and what `status` and `top` show of copies."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from typer.testing import CliRunner, Result

from anabranch.cli import top
from anabranch.cli.main import app
from anabranch.cli.replication_view import (
    copies_table,
    replicated_streams,
    streams_table,
    why_below,
)
from anabranch.cli.screen import show
from anabranch.cli.status import Asked, picture
from anabranch.core.replication.report import (
    CopyReport,
    KeptCopyReport,
    OwnCopiesReport,
    ReplicationReport,
)
from anabranch.node.status import Status
from tests.unit.cli.test_status_view import LIFE, status


def copy(broker: str, state: str = "member", lag: int | None = 0, **more: Any) -> CopyReport:
    given: dict[str, Any] = {
        "broker": broker,
        "state": state,
        "is_configured": True,
        "since": LIFE,
        "acked": None if lag is None else 120 - lag,
        "lag": lag,
    }
    return CopyReport(**(given | more))


def origin(name: str, *others: CopyReport, **more: Any) -> Status:
    """The status of a broker whose stream has these other copies."""
    copies = (copy(name), *others)
    given: dict[str, Any] = {
        "state": "leading",
        "waits_for": "",
        "life": LIFE,
        "configured": 3,
        "present": sum(each.state == "member" for each in copies),
        "confirm": 2,
        "confirmed": 118,
        "newest": 120,
        "copies": copies,
    }
    own = OwnCopiesReport(**(given | more))
    state = "waiting for copies" if own.waits_for else "ready"
    return status(name, state=state, replication=ReplicationReport(own=own))


def keeper(name: str, *streams: str, **more: Any) -> Status:
    given: dict[str, Any] = {
        "first": 7,
        "last": 118,
        "confirmed": 117,
        "promised": LIFE,
        "is_examining": False,
        "is_full": False,
    }
    kept = tuple(KeptCopyReport(stream=stream, **(given | more)) for stream in streams)
    return status(name, replication=ReplicationReport(kept=kept, kept_copies=len(kept)))


def asked(*found: Status | str, copies: int = 0) -> list[Asked]:
    """Brokers that answered, and the names of others."""
    return [
        Asked(each, "127.0.0.1", 4_102, copies=copies)
        if isinstance(each, str)
        else Asked(each.broker, "127.0.0.1", 4_102, each, copies=copies)
        for each in found
    ]


def lines(*parts: RenderableType, width: int = 80) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show(screen, *parts)
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def test_status_shows_each_stream_with_its_copies_and_their_lag() -> None:
    told = asked(origin("a", copy("m"), copy("b", lag=2)), keeper("m", "a"))
    shown = lines(*picture(told, 80))
    head = next(n for n, line in enumerate(shown) if line.startswith("stream"))
    assert shown[head].split()[:4] == ["stream", "state", "copies", "confirm"]
    assert shown[head + 1].split() == [
        "a",
        "leading",
        "3/3",
        "2",
        "118",
        "120",
        "m",
        "0,",
        "b",
        "2",
    ]
    assert not any("copies:" in line for line in shown)


def test_status_says_why_a_stream_has_too_few_copies_and_what_a_broker_waits_for() -> None:
    few = origin("a", copy("m", "silent", None), copy("b", "lost", None), waits_for="it waits")
    full = keeper("m", "a", "c", is_full=True)
    shown = lines(*picture(asked(few, full), 80))
    assert "  stream a has 1 of 3 copies: m has not answered, b lost its copy" in shown
    assert "  a: refuses clients: it waits" in shown
    assert "  m: the disk has no space for the copies of a, c" in shown
    row = next(line for line in shown if line.startswith("a ") and "waiting" in line)
    assert "waiting for copies" in row


def test_no_broker_with_copies_no_table() -> None:
    shown = lines(*picture(asked(status("a"), status("b", replication=ReplicationReport())), 80))
    assert not any(line.startswith("stream") for line in shown)


def test_a_copy_at_a_broker_that_is_down_does_not_count() -> None:
    (found,) = streams(asked(origin("a", copy("m"), copy("b")), keeper("m", "a"), "b"))
    assert [each.state for each in found.copies] == ["member", "member", "down"]
    assert (found.present, found.is_below) == (2, True)
    assert why_below(found) == "stream a has 2 of 3 copies: b is down"


def test_a_stream_whose_origin_is_down_is_known_from_its_keepers_and_the_file() -> None:
    told = asked("a", keeper("m", "a"), keeper("b", "a", last=100), copies=3)
    (found,) = streams(told)
    assert (found.state, found.configured, found.present, found.newest) == ("down", 3, 2, 118)
    assert [(each.broker, each.state, each.lag) for each in found.copies] == [
        ("a", "down", None),
        ("b", "kept", 18),
        ("m", "kept", 0),
    ]
    assert why_below(found) == "stream a has 2 of 3 copies: a is down"
    (unknown,) = streams(asked("a", keeper("m", "a")))
    assert why_below(unknown) == "stream a has 1 of ? copies: a is down"


def test_a_copy_that_its_origin_does_not_need_is_shown_as_that() -> None:
    told = asked(origin("a", configured=1), keeper("m", "a"))
    (found,) = streams(told)
    assert [(each.broker, each.state) for each in found.copies] == [
        ("a", "member"),
        ("m", "unneeded"),
    ]
    assert not found.is_below
    (early,) = streams(asked(origin("a", state="asking"), keeper("m", "a")))
    assert early.copies[1].state == "kept"


def test_the_table_of_copies_fits_80_columns_and_notes_what_is_unusual() -> None:
    leaving = copy("x", is_configured=False)
    told = asked(
        origin("a", copy("m"), copy("b", "learner", 5), leaving),
        keeper("m", "a", is_full=True, is_examining=True),
    )
    found = streams(told)
    wide = lines(copies_table(found, 200), width=200)
    assert wide[2].endswith("7–118              117  disk full, reading its rows")
    assert wide[4].endswith("not in the network file")
    assert all(len(line) <= 80 for line in lines(copies_table(found, 80)))
    assert all(len(line) <= 80 for line in lines(streams_table(found, 80)))


def test_top_has_a_column_of_copies_if_a_stream_is_replicated() -> None:
    sample = top.Sample(asked(origin("a", copy("m")), status("r")))
    shown = lines(top.picture(sample, sample, 200), width=200)
    assert shown[0].split()[-1] == "copies"
    assert shown[1].split()[-1] == "2/3"
    plain = top.Sample(asked(status("r")))
    assert "copies" not in lines(top.picture(plain, plain, 200), width=200)[0]


def streams(told: list[Asked]) -> list[Any]:
    return list(
        replicated_streams(
            {each.name: each.status for each in told}, {each.name: each.copies for each in told}
        )
    )


# -- the command -----------------------------------------------------------------------------------


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replication", "show", *arguments])


def test_a_network_that_is_down_has_too_few_copies(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        "[network]\nname = 'pair'\n[tree]\na = ['b']\n[replication]\ncopies = 2\n"
        + "".join(
            f"[brokers.{name}]\nclients = {at}\nlinks = {at + 1}\nobserve = {at + 2}\n"
            for name, at in (("a", 1), ("b", 4))
        )
    )
    result = invoke("--network", str(file), "--json")
    assert result.exit_code == 1, result.output
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["stream"], each["state"], each["is_below"]) for each in documents] == [
        ("a", "down", True),
        ("b", "down", True),
    ]
    assert result.stderr.startswith("note: a: does not answer at ")


def test_a_network_without_copies_says_so(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        "[network]\nname = 'one'\n[tree]\na = []\n[brokers.a]\nclients = 1\nobserve = 2\n"
    )
    result = invoke("--network", str(file))
    assert (result.exit_code, result.stdout) == (0, "no replicated streams\n")


def test_help_says_what_exit_code_1_means() -> None:
    assert "Exit code 1" in invoke("--help").output
