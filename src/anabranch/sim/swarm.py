"""Plans: the network shape, options, applications and faults that a seed determines.

`draw(seed)` returns a `Plan`; a plan and its seed define a simulation completely. Most networks are
small, because small ones find most bugs quickly; some have forty brokers.

Features added later use separate random generators, so that a seed without them still gives the
same simulation.
"""

from random import Random
from typing import Literal, get_args

import msgspec

from anabranch.core.options import Options, Prefer
from anabranch.core.routing.registry import RoutingName
from anabranch.model.errors import LocalError
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.network import Network
from anabranch.sim.applications import Absences, Wandering
from anabranch.sim.faults import ANY, FaultMix, asked_mix, draw_mix
from anabranch.sim.mesh_shapes import MeshKind, draw_mesh

Shape = Literal[
    "any", "single", "pair", "star", "line", "redundant", "large", "ring", "full", "random"
]
#: Make the other sources of chance others than the first.
_MORE = 0xD1CE
_CHANGING = 0x1187
#: Chosen so that the seeds which tests know by heart have none.
_SINKING = 0x20FE
_DETECTING = 0x9A77
_PACING = 0xB0B5
_HOLDING = 0x41D5
_COMPARING = 0xC0A9
_MESHING = 0x3E54
_COPYING = 0xC0B1
_BURYING = 0xB0D1
#: Chosen so that the seeds which tests know by heart keep their plans.
_ORDERING = 0x4C381
_FORGETTING = 0x5E02
SHAPES: tuple[Shape, ...] = get_args(Shape)
#: Shapes that only a mesh can have, beside `large`, which both have.
MESH_SHAPES: tuple[Shape, ...] = ("ring", "full", "random")


#: How much longer there are faults if origins stay down: long enough to read from their keepers.
_BURIED_S = 4.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation, but for its seed."""

    seed: int
    routing: RoutingName
    network: Network
    options: Options
    faults: FaultMix
    publishers: int
    subscribers: int
    #: Events per second of each publisher.
    rate: float
    #: Subscriptions made or ended per second, over all subscribers.
    churn: float
    #: Clients that vanish, roam or return per second.
    restless: float
    #: Seconds with faults.
    fault_s: float
    #: Seconds after everything is healed in which all must be well.
    settle_s: float
    #: Chance that a subscription starts at a tick or a time, perhaps one that is not kept.
    explicit_starts: float = 0.0
    #: Chance that an event is transient, or limited in time or hops.
    limited_events: float = 0.0
    #: Programs that write batches.
    sinks: int = 0
    #: Batches per second of each of these, at most.
    batch_rate: float = 2.0
    #: Chance that a publisher advertises what it publishes.
    advertising: float = 0.0
    #: Patterns that are defined.
    patterns: int = 0
    #: Matches of one pattern that may end with the same event.
    matches_max: int = DEFAULT_LIMITS.pattern_matches_max
    #: How the events of one publisher are ordered.
    wandering: Wandering = Wandering()
    #: Publishers that are away, longer than origins remember them or not.
    absences: Absences = Absences()
    #: Made at the start by all subscribers together; 0: each makes one to four.
    subscriptions: int = 0


def draw(
    seed: int,
    routing: RoutingName = "tree",
    *,
    shape: Shape = "any",
    brokers: int | None = None,
    faults: str = ANY,
    copies: bool = False,
) -> Plan:
    """The plan of a seed; `faults` as in `asked_mix`. With `copies`, streams have copies, and disks
    are lost."""
    rng, more, meshing = Random(seed), Random(seed ^ _MORE), Random(seed ^ _MESHING)
    network = _draw_network(rng, "any" if shape in MESH_SHAPES else shape, brokers)
    options = _draw_options(rng, seed)
    advertising = 0.0
    if routing == "mesh":
        network = _draw_mesh(meshing, network, shape, brokers)
        options = _draw_comparisons(seed, _draw_mesh_options(meshing, options))
        advertising = meshing.choice((0.0, 0.5, 1.0))
    elif shape in MESH_SHAPES:
        raise LocalError(f"{routing!r} routing needs a tree; a network of shape {shape!r} is none")
    size = len(network.brokers)
    drawn = draw_mix(rng, more, Random(seed ^ _CHANGING), size)
    sinking = Random(seed ^ _SINKING)
    sinks = sinking.choice((1, 1, 2)) if sinking.random() < 0.2 else 0
    asked = asked_mix(faults)
    chosen = drawn if asked is None else asked
    if copies:
        options, chosen = _draw_copies(Random(seed ^ _COPYING), size, options, chosen, asked)
        options, chosen = _draw_reads(Random(seed ^ _BURYING), options, chosen, asked)
    options = _draw_staging(sinking, sinks, _draw_checkpoints(seed, _draw_retention(more, options)))
    options = _draw_slices(seed, options)
    detecting = Random(seed ^ _DETECTING)
    patterns = _draw_patterns(detecting, options, chosen)
    pacing = Random(seed ^ _PACING)
    if patterns:
        options = _draw_pace(pacing, _draw_pattern_options(detecting, options))
    else:
        options = _draw_held_back(Random(seed ^ _HOLDING), options)
    wandering, options = _draw_order(Random(seed ^ _ORDERING), options)
    absences, options = _draw_forgetting(Random(seed ^ _FORGETTING), options)
    if copies and absences.rate:
        options = _roomy(options)
    plan = Plan(
        seed=seed,
        routing=routing,
        network=network,
        options=options,
        faults=chosen,
        publishers=rng.randint(1, 3),
        subscribers=rng.randint(2, 6) if size < 12 else rng.randint(3, 9),
        rate=rng.choice((5.0, 12.0, 26.0)),
        churn=rng.choice((1.0, 2.0, 5.0)),
        restless=rng.choice((0.0, 0.3, 1.0)),
        fault_s=rng.uniform(5.0, 11.0),
        settle_s=30.0,
        explicit_starts=more.choice((0.0, 0.0, 0.3)),
        limited_events=more.choice((0.0, 0.0, 0.25)),
        sinks=sinks,
        advertising=advertising,
        patterns=patterns,
        matches_max=pacing.choice((1, 1, 2, DEFAULT_LIMITS.pattern_matches_max)),
        wandering=wandering,
        absences=absences,
    )
    if chosen.rollback:
        plan = _quiet(plan)
    if chosen.bury:
        plan = msgspec.structs.replace(plan, fault_s=plan.fault_s + _BURIED_S)
    return _stretched(plan, chosen.divide_s) if chosen.divide_s else plan


def _draw_copies(
    copying: Random, brokers: int, options: Options, faults: FaultMix, asked: FaultMix | None
) -> tuple[Options, FaultMix]:
    """Copies of streams, where there are brokers for them, and disks that are lost."""
    copies, confirm = copying.choice(((2, 2), (3, 2), (3, 2), (3, 3), (2, 1), (4, 2)))
    # A network that becomes another one may have two brokers left.
    copies = min(copies, brokers, 2 if faults.reconfigure else copies)
    confirm = min(copies, confirm)
    lose_disk = copying.choice((0.0, 0.2, 0.5))
    if confirm == 1 or faults.clock_jump:
        # A broker that lost its disk has only its clock to tell that it is not older than before.
        lose_disk = 0.0
    if asked is None:
        faults = msgspec.structs.replace(faults, lose_disk=lose_disk)
    elif confirm == 1:
        # What one disk has confirmed goes with it.
        faults = msgspec.structs.replace(faults, lose_disk=0.0, roll_back_disk=0.0)
    return msgspec.structs.replace(options, copies=copies, confirm=confirm), faults


def _draw_reads(
    burying: Random, options: Options, faults: FaultMix, asked: FaultMix | None
) -> tuple[Options, FaultMix]:
    """Whom edges ask first, and origins that stay away."""
    bury = burying.choice((0.0, 0.3, 0.6))
    if asked is None:
        faults = msgspec.structs.replace(faults, bury=bury)
    prefer: Prefer = burying.choice(("origin", "origin", "near"))
    return msgspec.structs.replace(options, prefer=prefer), faults


def _quiet(plan: Plan) -> Plan:
    """The same with less going on: what old copies do to all of it nobody promises."""
    options = msgspec.structs.replace(
        plan.options, retention="refuse", log_ticks_max=100_000_000, log_age_s_max=None
    )
    return msgspec.structs.replace(
        plan,
        options=options,
        restless=0.0,
        explicit_starts=0.0,
        limited_events=0.0,
        sinks=0,
        patterns=0,
        wandering=Wandering(),
        absences=Absences(),
    )


def _stretched(plan: Plan, more_s: float) -> Plan:
    """The same for longer: as much happens as before, so that it is soon made up for."""
    slower = plan.fault_s / (plan.fault_s + more_s)
    return msgspec.structs.replace(
        plan,
        fault_s=plan.fault_s + more_s,
        rate=plan.rate * slower,
        churn=plan.churn * slower,
        restless=plan.restless * slower,
        batch_rate=plan.batch_rate * slower,
    )


def _draw_patterns(detecting: Random, options: Options, faults: FaultMix) -> int:
    """How many patterns are detected. None where events are forgotten, or clocks are set back: then
    nobody can say which matches there are."""
    count = detecting.choice((1, 2)) if detecting.random() < 0.2 else 0
    is_kept = options.retention == "refuse" and options.log_ticks_max > _SMALL_LOG
    return count if is_kept and not faults.clock_jump else 0


def _draw_network(rng: Random, shape: Shape, brokers: int | None) -> Network:
    if shape == "any":
        shapes: tuple[Shape, ...] = ("single", "pair", "star", "line", "redundant", "large")
        shape = rng.choices(shapes, (4, 12, 34, 20, 27, 3))[0]
    if shape == "single":
        return Network({"e1": ["e1"]})
    if shape == "pair":
        return Network({"e1": ["e1"], "e2": ["e2"]}, [("e1", "e2")])
    sites, edges, width = _draw_sizes(rng, shape)
    return _grow(rng, sites, edges, width, brokers or 40)


def _draw_mesh(meshing: Random, tree: Network, shape: Shape, brokers: int | None) -> Network:
    """A mesh; now and then, and where a shape of trees is asked for, the tree that was drawn."""
    if shape == "any" and meshing.random() < 0.15:
        return tree
    if shape in {"single", "pair", "star", "line", "redundant"}:
        return tree
    kind: MeshKind = shape if shape in {"ring", "full", "random", "large"} else "any"
    return draw_mesh(meshing, kind, brokers)


def _draw_mesh_options(meshing: Random, options: Options) -> Options:
    return msgspec.structs.replace(
        options,
        advertisements=meshing.random() < 0.85,
        paths=meshing.choice(("fixed", "dynamic", "dynamic")),
        cost=meshing.choice(("utilisation", "utilisation", "waiting")),
        trees_max=meshing.choice((0, 1, 8)),
        advertisements_max=meshing.choice((1, 1_024, 1_024)),
        advertised_for_s=meshing.choice((0.0, 0.3, 5.0)),
    )


def _draw_comparisons(seed: int, options: Options) -> Options:
    """In every fourth seed nearly all comparisons have to wait."""
    rng = Random(seed ^ _COMPARING)
    few = rng.choice((0, 3, 40))
    return msgspec.structs.replace(options, comparisons_max=few) if rng.random() < 0.25 else options


def _draw_sizes(rng: Random, shape: Shape) -> tuple[int, int, int]:
    """(inner sites, edges, most brokers of an inner site)."""
    if shape == "star":
        return 1, rng.randint(2, 4), 1
    if shape == "line":
        return rng.randint(2, 3), rng.randint(2, 3), 1
    if shape == "redundant":
        return rng.randint(1, 2), rng.randint(2, 4), rng.randint(2, 4)
    return rng.randint(4, 8), rng.randint(6, 12), 4


def _grow(rng: Random, inner: int, edges: int, width: int, brokers_max: int) -> Network:
    """A random tree of sites, with the edges as its leaves."""
    sites: dict[str, list[str]] = {}
    joins: list[tuple[str, str]] = []
    left = brokers_max - edges
    for number in range(inner):
        count = max(1, min(rng.randint(1, width), left - (inner - number - 1)))
        left -= count
        site = f"site{number}"
        sites[site] = [f"{site}.{index}" for index in range(count)]
        if number:
            joins.append((f"site{rng.randint(max(0, number - 2), number - 1)}", site))
    for number in range(1, edges + 1):
        edge = f"e{number}"
        # Every inner leaf gets an edge first, so that no site routes for nobody.
        parent = f"site{inner - number}" if number <= inner else f"site{rng.randrange(inner)}"
        sites[edge] = [edge]
        joins.append((edge, parent))
        if rng.random() < 0.15:
            sites[parent].append(edge)
    return Network(sites, joins)


def _draw_options(rng: Random, seed: int) -> Options:
    return Options(
        heartbeat_s=0.4,
        start_alone_after_s=1.0,
        dead_after_s=rng.choice((1.2, 2.0)),
        recent_ticks_max=rng.choice((16, 64, 4_096)),
        mark_after_s=rng.choice((0.0, 0.02, 0.1)),
        head_every_s=rng.choice((0.3, 0.5)),
        nack_after_s=rng.choice((0.02, 0.05, 0.1)),
        nack_again_s=0.3,
        ask_again_s=0.4,
        done_every_s=rng.choice((0.1, 0.3)),
        line_ticks_max=rng.choice((64, 8_192)),
        replay_events_max=rng.choice((4, 32, 256)),
        interest_after_s=rng.choice((0.0, 0.01, 0.05)),
        silence_after_s=rng.choice((0.0, 0.02, 0.1)),
        lag_after_s=rng.choice((0.5, 1.0)),
        coarsen=seed % 10 == 9,
        coarsen_above=2,
        covering=rng.random() < 0.9,
        digests=rng.random() < 0.9,
        sufficiency_cache=rng.random() < 0.9,
    )


def _draw_checkpoints(seed: int, options: Options) -> Options:
    """Logs here are short, so checkpoints come early, or not at all. Some keep what was released,
    for a while."""
    ticks, keep_s = (8, 40, 8_192)[seed % 3], (0.0, 0.0, 1.5)[seed // 3 % 3]
    return msgspec.structs.replace(options, checkpoint_ticks=ticks, keep_s=keep_s)


def _draw_slices(seed: int, options: Options) -> Options:
    """In every fourth network work is cut into the smallest slices, or into small ones."""
    work = (20_000, 20_000, 20_000, (1, 100)[seed // 4 % 2])[seed % 4]
    conjunctions = (1_024, 1, 3)[seed // 4 % 3] if seed % 4 == 3 else 1_024
    return msgspec.structs.replace(
        options, step_work_max=work, interest_conjunctions_max=conjunctions
    )


def _draw_staging(sinking: Random, sinks: int, options: Options) -> Options:
    """Slices that make several of a batch, and a stage that is full of what nobody commits, or that
    forgets it early."""
    if not sinks:
        return options
    slice_events_max = sinking.choice((1, 4, 1_024))
    options = msgspec.structs.replace(options, slice_events_max=slice_events_max)
    if sinking.random() < 0.6:
        return options
    return msgspec.structs.replace(options, stage_keep_s=3.0, stage_bytes_max=30_000)


def _draw_pattern_options(detecting: Random, options: Options) -> Options:
    return msgspec.structs.replace(
        options,
        pattern_save_s=detecting.choice((0.02, 0.2, 1.0)),
        pattern_look_s=detecting.choice((0.02, 0.1)),
        pattern_again_s=detecting.choice((0.1, 1.0)),
        pattern_review_s=detecting.choice((0.3, 1.0, 3.0)),
    )


def _draw_pace(pacing: Random, options: Options) -> Options:
    """In many worlds join points do little in a step, and publish few matches in a second."""
    return msgspec.structs.replace(
        options,
        pattern_step_tries=pacing.choice((1, 300, options.pattern_step_tries)),
        pattern_matches_per_s=pacing.choice((20, options.pattern_matches_per_s)),
        pattern_client_matches_per_s=pacing.choice((20, options.pattern_client_matches_per_s)),
    )


def _draw_held_back(holding: Random, options: Options) -> Options:
    """Now and then a quota that slow subscriptions exceed. Patterns need complete logs."""
    if options.retention == "lossy" or holding.random() > 0.1:
        return options
    return msgspec.structs.replace(options, held_back_bytes_max=holding.choice((4_000, 12_000)))


def _draw_order(ordering: Random, options: Options) -> tuple[Wandering, Options]:
    """In two of five seeds publishers want their events in order over all brokers, and move."""
    if ordering.random() >= 0.4:
        return Wandering(), options
    options = msgspec.structs.replace(options, order_within_s=ordering.choice((0.2, 1.0, 5.0)))
    wandering = Wandering(
        order="publisher",
        within_s=ordering.choice((0.3, 2.0, 5.0)),
        stated_s=ordering.choice((1.0, 60.0, 60.0)),
        failover=ordering.choice((0.0, 0.5, 1.0)),
    )
    return wandering, options


def _draw_forgetting(forgetting: Random, options: Options) -> tuple[Absences, Options]:
    """In every seventh seed origins soon forget publishers, which go away with unconfirmed events:
    some come back in time, others too late."""
    if forgetting.random() >= 0.15:
        return Absences(), options
    keep_s = forgetting.choice((0.2, 0.5, 1.0))
    options = msgspec.structs.replace(options, publisher_keep_s=keep_s)
    late_s = (2 * keep_s + 0.5, 2 * keep_s + 1.5)
    rate = forgetting.choice((0.3, 0.8))
    return Absences(rate=rate, away_s=(0.5 * keep_s, keep_s, *late_s)), options


#: A log with fewer ticks may be full.
_SMALL_LOG = 1_000
_ROOMY_LOG = 1_000_000


def _roomy(options: Options) -> Options:
    """A log that is not full of rows: a publisher that is soon forgotten is soon noted again, and
    where streams have copies each note is a tick."""
    return msgspec.structs.replace(options, log_ticks_max=max(options.log_ticks_max, _ROOMY_LOG))


def _draw_retention(more: Random, options: Options) -> Options:
    """Now and then a log so small that it is full."""
    kind = more.random()
    if kind < 0.7:
        return options
    if kind < 0.85:
        return msgspec.structs.replace(
            options,
            retention="lossy",
            log_ticks_max=more.choice((24, 60, 150)),
            log_age_s_max=more.choice((None, 1.5, 4.0)),
        )
    return msgspec.structs.replace(options, log_ticks_max=more.choice((80, 200)))
