"""The generic algorithm keeps its promises, and the routers' vectors are an encoding of it.

The model alone, in networks that reorder, repeat and lose: its conditions keep S-Λ, and each of
them is needed. Then routers and model side by side, on the same histories. A history that fails is
in the notes of the error; `tests/model/histories.py` can shorten it.
"""

import random
from collections.abc import Callable, Sequence

import pytest

from anabranch.check.coverage import Domain
from anabranch.model.network import Network
from anabranch.sim.mutants.catalog import planted
from tests.model.free import FreeNetwork, random_line
from tests.model.histories import play, random_lines, shortened
from tests.model.lockstep import Lockstep
from tests.routing_parts import DOMAIN
from tests.routing_turmoil import FILTERS, star, two_levels, wide

SHAPES: tuple[Callable[[], Network], ...] = (star, two_levels, wide)
TEXTS = [text.format(x=x, y=y) for text in FILTERS for x in range(4) for y in range(4)]
EVENTS = Domain(DOMAIN)


def four_edges() -> Network:
    """One relay site of two brokers, four edges."""
    sites = {"n1": ["m1", "m2"]} | {name: [name] for name in ("p", "s1", "s2", "s3")}
    return Network(sites, [("n1", name) for name in ("p", "s1", "s2", "s3")])


def steps(text: str) -> list[str]:
    """The lines of a history, without what explains them."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


# -- the model alone ------------------------------------------------------------------------------


def run_free(seed: int, ordered: bool, exact: bool) -> FreeNetwork:
    source = random.Random(seed)
    network = FreeNetwork(source.choice(SHAPES)(), EVENTS, ordered, exact)
    lines: list[str] = []
    try:
        for _ in range(150):
            lines.append(random_line(network, source, TEXTS))
            network.do(lines[-1])
    except AssertionError as error:
        error.add_note("\n".join(lines))
        raise
    return network


def test_conditions_keep_the_invariant_in_any_order() -> None:
    runs = [run_free(seed, ordered=False, exact=False) for seed in range(60)]
    assert sum(run.refused for run in runs) > 50
    assert sum(run.taken for run in runs) > 1_000


def test_with_all_conditions_and_in_order_every_conjunction_has_a_subscription() -> None:
    runs = [run_free(seed, ordered=True, exact=True) for seed in range(60)]
    assert sum(run.taken for run in runs) > 1_000


#: Kind of condition → a history that needs it, and what happens without it.
NEEDED = {
    "I": (
        "S-Λ at s2",
        """
        subscribe p wide a >= 0
        propagate p
        take m1 p.1             # s2 does not hear of it
        subscribe s1 narrow a = 1
        propagate s1
        take m1 s1.1            # covered here: left out
        take s2 s1.1/m1
        """,
    ),
    "II": (
        "S-Λ at p",
        """
        subscribe s1 wide TRUE
        propagate s1
        take m1 s1.1
        take p s1.1/m1
        subscribe s2 narrow a = 2
        propagate s2
        take m2 s2.1            # m1 does not hear of it
        take p s2.1/m2          # covered by s1's
        end s1 wide
        propagate s1
        take m1 s1.2
        take p s1.2/m1          # m1 does not know what p needs instead
        """,
    ),
    "III": (
        "S-Λ at p",
        """
        subscribe s1 one b = 2
        propagate s1
        take m1 s1.1
        take p s1.1/m1
        subscribe s3 narrow a = 0 AND b = 2
        propagate s3
        take m1 s3.1
        take p s3.1/m1          # covered by s1's
        subscribe s2 other a = 0
        propagate s2
        take m1 s2.1            # p does not hear of it
        end s1 one
        propagate s1
        take m1 s1.2            # s3's is covered by s2's: not told
        take p s1.2/m1
        """,
    ),
    "III'": (
        "S-Λ at p",
        """
        subscribe s1 narrow a = 0 AND b = 2
        propagate s1
        take m1 s1.1
        take p s1.1/m1
        subscribe s2 one b = 2
        propagate s2
        take m1 s2.1
        take p s2.1/m1          # covers s1's first, at p
        subscribe s1 other a = 0
        propagate s1
        take m1 s1.2            # m1 drops s1's first; p does not hear of it
        end s2 one
        propagate s2
        take m1 s2.2            # nothing there that it covered
        take p s2.2/m1
        """,
    ),
    "IV": (
        "stale at s1",
        """
        subscribe s2 wide TRUE
        propagate s2
        take m1 s2.1
        take s1 s2.1/m1
        subscribe p narrow a = 1
        propagate p
        take m1 p.1             # s1 does not hear of it
        end s2 wide
        propagate s2
        take m1 s2.2
        take s1 s2.2/m1         # gets the conjunction, and not the subscription
        """,
    ),
}


@pytest.mark.parametrize("kind", NEEDED)
def test_each_condition_is_needed(kind: str) -> None:
    failure, history = NEEDED[kind]
    network = FreeNetwork(four_edges(), EVENTS, ordered=True, exact=True, without=kind)
    with pytest.raises(AssertionError, match=failure):
        network.run(steps(history))


@pytest.mark.parametrize("kind", NEEDED)
def test_condition_refuses_what_would_do_harm(kind: str) -> None:
    network = FreeNetwork(four_edges(), EVENTS, ordered=True, exact=True)
    network.run(steps(NEEDED[kind][1]))
    assert network.refused == 1


def test_end_that_overtakes_the_beginning_leaves_a_stale_conjunction() -> None:
    history = """
        subscribe p one a = 1
        propagate p
        end p one
        propagate p
        take m1 p.2
        take m1 p.1
    """
    network = FreeNetwork(four_edges(), EVENTS, ordered=False, exact=True)
    with pytest.raises(AssertionError, match="stale at m1"):
        network.run(steps(history))


# -- routers and the model side by side -----------------------------------------------------------


def run_lockstep(seed: int) -> Lockstep:
    source = random.Random(seed)
    shape = source.choice(SHAPES)
    world, lines = Lockstep(shape()), []
    try:
        for line in random_lines(world, source, TEXTS, 200):
            lines.append(line)
            play(world, line)
        play(world, "settle")
    except AssertionError as error:
        error.add_note("\n".join([shape.__name__, *lines, "settle"]))
        raise
    return world


@pytest.mark.slow
def test_vectors_encode_the_sets_of_the_model() -> None:
    held: dict[str, int] = {}
    for seed in range(24):
        for kind, count in run_lockstep(seed).held.items():
            held[kind] = held.get(kind, 0) + count
    # Every kind of condition was met, and held by equality of vectors.
    assert sorted(held) == ["I", "II", "III", "III'", "IV"]
    assert sum(held.values()) > 500


#: Mutant → a history in which the routers deviate from the model, and how.
DEVIATIONS = {
    "constraint-at-least": (
        "applies .* against condition .*'II'",
        """
        subscribe p narrow a = 1
        subscribe s1 wide a >= 0
        wait 0.02
        rest
        wait 0.1
        crash m2
        restart m2
        connect m2 s1
        connect m2 s2           # m2 hears of s1 and s2, and not of p
        rest
        disconnect m1 s1
        unsubscribe wide
        wait 0.02
        deliver s1 m2
        deliver m2 s2           # s2 knows p's, and would lose it
        """,
    ),
    "no-constraint": (
        "S at m1",
        """
        subscribe p first a = 1
        wait 0.02
        disconnect m1 p         # loses the first
        disconnect m2 p
        connect m1 p
        subscribe p second a = 2
        wait 0.02
        deliver p m1
        deliver p m1            # a question, then the second
        """,
    ),
    "minus-ignored-aggregation": (
        "applies .* against condition .*'I'",
        """
        wait 0.02
        rest
        disconnect m2 s1
        subscribe p wide a >= 0
        wait 0.02
        rest                    # m2 tells m1, and cannot tell s1
        disconnect m2 s2
        subscribe s2 narrow a = 1
        wait 0.02
        deliver s2 m1           # covered here: left out
        deliver m1 s1
        """,
    ),
    "state-keeps-old": (
        "stale at m1",
        """
        subscribe s1 first a = 1
        wait 0.02
        rest
        crash s1                # and with it the subscription
        restart s1
        wait 0.02
        connect m1 s1
        wait 0.02
        rest
        """,
    ),
    "vst-too-low": (
        "starts with no other",
        """
        wait 0.02
        subscribe p first a = 1
        """,
    ),
    "no-sufficiency": (
        "insufficient: m2 drops tick 2 of p towards s1",
        """
        subscribe s1 first a = 1
        wait 0.02
        rest
        mark p                  # from here on, ticks count on the subscription
        wait 0.02
        rest
        crash m1
        crash m2
        restart m2
        connect m2 p
        connect m2 s1           # m2 asks, and has no answer yet
        publish p 1 0
        deliver p m2
        deliver p m2
        deliver p m2
        """,
    ),
    "silence-without-vector": (
        "S.m.: m. tells tick 1 with mark 0",
        """
        subscribe s1 first a = 1
        wait 0.02
        rest
        mark p
        rest
        """,
    ),
    "digest-survives-link": (
        "'p', Version",
        """
        subscribe s1 first a = 1
        wait 0.02
        rest
        mark p                  # says the vector to a relay
        disconnect m1 p         # where it is lost
        disconnect m2 p
        settle
        """,
    ),
}


def two_relays() -> Network:
    """One relay site of two brokers, three edges."""
    sites = {"p": ["p"], "n1": ["m1", "m2"], "s1": ["s1"], "s2": ["s2"]}
    return Network(sites, [("p", "n1"), ("n1", "s1"), ("n1", "s2")])


def play_all(world: Lockstep, lines: Sequence[str]) -> None:
    for line in lines:
        play(world, line)


@pytest.mark.parametrize("name", DEVIATIONS)
def test_deviation_of_a_mutant_is_noticed(name: str) -> None:
    failure, history = DEVIATIONS[name]
    with planted(name), pytest.raises(AssertionError, match=failure):
        play_all(Lockstep(two_relays()), steps(history))


@pytest.mark.parametrize("name", DEVIATIONS)
def test_history_that_shows_a_deviation_is_fine_without_it(name: str) -> None:
    play_all(Lockstep(two_relays()), [*steps(DEVIATIONS[name][1]), "settle"])


def test_failing_history_is_shortened_to_what_matters() -> None:
    def fails(lines: Sequence[str]) -> bool:
        try:
            with planted("vst-too-low"):
                play_all(Lockstep(two_relays()), lines)
        except AssertionError:
            return True
        return False

    noise = ["subscribe s2 x TRUE", "wait 0.1", "rest", "publish p 1 1", "crash m1", "rest"]
    history = [*noise, *steps(DEVIATIONS["vst-too-low"][1]), "settle"]
    assert shortened(history, fails) in (
        ["wait 0.1", "subscribe p first a = 1"],
        ["wait 0.02", "subscribe p first a = 1"],
    )
