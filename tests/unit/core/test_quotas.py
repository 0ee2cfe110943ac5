"""Every quota, met at a whole broker: the refusal names it, and others go on."""

from collections.abc import Callable

import pytest

from anabranch.core.options import Options
from anabranch.model.client_frames import (
    Advertises,
    Define,
    PublishRefused,
    Refused,
    Stage,
    Staged,
    Subscribe,
)
from anabranch.model.limits import Limits
from tests.catalog_parts import RISE, Machine
from tests.staging_parts import draft

#: What is larger than any quota of bytes below.
LARGE = " OR ".join(f"a{number} > {number}" for number in range(8))


def subscribe(machine: Machine, session: int) -> None:
    for number in range(1, 4):
        machine.say(session, Subscribe(number, f"s{number}", f"n > {number}", "reliable"))


def subscribe_largely(machine: Machine, session: int) -> None:
    machine.say(session, Subscribe(1, "s", LARGE, "reliable"))


def advertise_largely(machine: Machine, session: int) -> None:
    machine.say(session, Advertises([LARGE]))


def define(machine: Machine, session: int) -> None:
    for number in range(1, 4):
        machine.say(session, Define(number, f"p{number}", RISE, is_new=True))


def stage_tokens(machine: Machine, session: int) -> None:
    for number in range(1, 4):
        machine.say(session, Stage(number, f"t{number}", 0, [], True))


def stage_much(machine: Machine, session: int) -> None:
    for number in range(1, 4):
        machine.say(session, Stage(number, f"t{number}", 0, [draft(1)], True))


def stage_largely(machine: Machine, session: int) -> None:
    machine.say(session, Stage(1, "t", 0, [draft(each) for each in range(100)], True))


def publish(machine: Machine, session: int) -> None:
    for name in ("p1", "p2", "p3"):
        machine.publish(machine.connect(name), name, 1, 1)


def ask_for_patterns(machine: Machine, session: int) -> None:
    for number in range(1, 4):
        machine.say(session, Define(number, "p", RISE, is_new=True))


Misuse = Callable[[Machine, int], None]

CASES: list[tuple[str, Misuse, Limits, Options]] = [
    ("subscriptions_max", subscribe, Limits(subscriptions_max=2), Options()),
    ("client_subscriptions_max", subscribe, Limits(client_subscriptions_max=2), Options()),
    (
        "subscriptions_bytes_max",
        subscribe_largely,
        Limits(subscriptions_bytes_max=50_000),
        Options(),
    ),
    (
        "client_subscriptions_bytes_max",
        subscribe_largely,
        Limits(client_subscriptions_bytes_max=50_000),
        Options(),
    ),
    ("subscriptions_bytes_max", define, Limits(subscriptions_bytes_max=50_000), Options()),
    (
        "client_subscriptions_bytes_max",
        define,
        Limits(client_subscriptions_bytes_max=50_000),
        Options(),
    ),
    (
        "client_subscriptions_bytes_max",
        advertise_largely,
        Limits(client_subscriptions_bytes_max=50_000),
        Options(),
    ),
    ("patterns_max", define, Limits(patterns_max=2), Options()),
    ("client_patterns_max", define, Limits(client_patterns_max=2), Options()),
    ("pattern_requests_max", ask_for_patterns, Limits(pattern_requests_max=2), Options()),
    (
        "session_pattern_requests_max",
        ask_for_patterns,
        Limits(session_pattern_requests_max=2),
        Options(),
    ),
    ("stage_tokens_max", stage_tokens, Limits(), Options(stage_tokens_max=2)),
    ("client_stage_tokens_max", stage_tokens, Limits(), Options(client_stage_tokens_max=2)),
    ("stage_bytes_max", stage_much, Limits(), Options(stage_bytes_max=800)),
    ("client_stage_bytes_max", stage_much, Limits(), Options(client_stage_bytes_max=800)),
    ("stage_bytes_max", stage_largely, Limits(), Options(stage_bytes_max=800)),
    ("client_stage_bytes_max", stage_largely, Limits(), Options(client_stage_bytes_max=800)),
    ("publishers_max", publish, Limits(), Options(publishers_max=2)),
]


def reasons(machine: Machine) -> list[str]:
    """Why anybody was refused, or cut."""
    sent = [frame for frames in machine.sent.values() for frame in frames]
    refused = [frame.reason for frame in sent if isinstance(frame, Refused | PublishRefused)]
    return refused + [effect.reason for effect in machine.cuts if hasattr(effect, "reason")]


@pytest.mark.parametrize(
    ("quota", "misuse", "limits", "options"),
    CASES,
    ids=[f"{quota}-{misuse.__name__}" for quota, misuse, _, _ in CASES],
)
def test_a_refusal_names_its_quota(
    quota: str, misuse: Misuse, limits: Limits, options: Options
) -> None:
    machine = Machine(limits=limits, options=options)
    misuse(machine, machine.connect("greedy"))
    machine.wait(1.0)
    found = reasons(machine)
    assert found
    assert all(f"({quota})" in reason for reason in found), found
    # Somebody is told what to do, after what has happened.
    assert all("; " in reason.partition(f"({quota})")[2] for reason in found), found


def test_with_no_quota_met_nothing_is_refused() -> None:
    for misuse in {each for _, each, _, _ in CASES}:
        machine = Machine()
        misuse(machine, machine.connect("modest"))
        machine.wait(1.0)
        assert reasons(machine) == [] or misuse is ask_for_patterns, misuse


def test_one_client_that_stages_empty_tokens_leaves_room_for_others() -> None:
    options = Options(stage_tokens_max=8, client_stage_tokens_max=6)
    machine = Machine(options=options)
    greedy, honest = machine.connect("greedy"), machine.connect("honest")
    for number in range(1, 21):
        machine.say(greedy, Stage(number, f"t{number}", 0, [], True))
    machine.say(honest, Stage(1, "mine", 0, [draft(1)], True))
    machine.wait(1.0)
    assert len(machine.heard(greedy, Staged)) == 6
    assert machine.heard(honest, Staged) == [Staged(1)]


def test_tokens_of_a_client_are_counted_again_after_a_restart_and_freed_when_they_go() -> None:
    options = Options(client_stage_tokens_max=2)
    machine = Machine(options=options)
    greedy = machine.connect("greedy")
    for number in (1, 2):
        machine.say(greedy, Stage(number, f"t{number}", 0, [], True))
    machine.wait(1.0)
    again = Machine(machine.catalog, now=machine.now + 10.0, options=options)
    session = again.connect("greedy")
    again.say(session, Stage(1, "t3", 0, [], True))
    again.wait(1.0)
    assert "(client_stage_tokens_max)" in again.heard(session, Refused)[0].reason
    again.wait(options.stage_keep_s)
    again.say(session, Stage(2, "t3", 0, [], True))
    again.wait(1.0)
    assert again.heard(session, Staged) == [Staged(2)]
