"""Planted bugs: mistakes that can be switched on by name, to prove that the checker can fail.

Each is one condition at the exact place where the mistake could be made. `anabranch sim --plant
NAME` must find it within `SEEDS_MAX` seeds from 0 on; a test runs every one of them on the seed
recorded here, which is known to show it.
"""

from typing import NamedTuple

from anabranch.core.broker import RoutingName
from anabranch.sim.fault_mix import ANY

#: Seeds within which each planted bug is found.
SEEDS_MAX = 400


class Plant(NamedTuple):
    """One mistake."""

    #: What is wrong.
    text: str
    #: A seed that shows it,
    seed: int
    #: and as what.
    anomaly: str
    #: Where it is.
    routing: RoutingName = "tree"
    #: A seed of meshes that shows it as the same, too, if it is anywhere.
    mesh_seed: int | None = None
    #: Faults that it needs, as in `fault_mix`.
    faults: str = ANY


PLANTS: dict[str, Plant] = {
    "ack-before-sync": Plant("events are confirmed before they are on disk", 10, "lost"),
    "no-dedup": Plant("an event that is sent again is logged again", 2, "duplicate"),
    "emit-before-sync": Plant("ticks leave the origin before they are on disk", 4, "phantom"),
    "vector-not-persisted": Plant("vectors are forgotten in a crash", 158, "gap"),
    "release-early": Plant("the fastest edge decides what is forgotten", 0, "wrongly-withheld"),
    "edge-no-dedup": Plant("ticks that come again are taken again", 4, "repeated"),
    "start-one-early": Plant("a start is claimed one tick too early", 0, "gap"),
    "start-ignores-version": Plant("a subscription starts with any tick", 0, "gap"),
    "unsubscribe-early": Plant("interest goes before the end is reached", 6, "lost"),
    "deliver-before-start-synced": Plant("a durable start is used unsynced", 80, "late-start"),
    "skip-gap": Plant("an edge gives a gap up after asking once", 5, "gap"),
    "no-yield": Plant("a former owner keeps a subscription", 6, "two-owners"),
    "claim-before-held": Plant(
        "a subscription is claimed before origins keep what it needs", 40, "wrongly-withheld"
    ),
    "silence-any-version": Plant("silence counts for subscriptions it does not know", 6, "gap"),
    "no-sufficiency": Plant("filters are used without knowing enough", 5, "gap"),
    "constraint-at-least": Plant("a change applies to later states too", 10, "leftover"),
    "no-constraint": Plant("a change applies to any state", 6, "s-lambda"),
    "digest-survives-link": Plant(
        "what a broken link carried counts as known", 1, "unknown-vector"
    ),
    "slice-lost": Plant("what is left of a slice is lost when something happens", 3, "stuck"),
    "vst-too-low": Plant("a subscription starts with the version before it", 1, "s-lambda"),
    "silence-without-vector": Plant("silence comes without its vector", 0, "gap"),
    "state-keeps-old": Plant("a new life's interest is added to the old one", 2, "leftover"),
    "withheld-one-more": Plant(
        "one tick more is withheld than the log lacks", 4, "wrongly-withheld"
    ),
    "old-events-replayed": Plant("replays bring events past their limits", 12, "unmatched"),
    "hold-one-late": Plant("an explicit start is one tick late", 0, "late-start"),
    "checkpoint-lacks-publishers": Plant(
        "a start trusts a checkpoint that does not know the publishers", 10, "stuck"
    ),
    "destinations-ignored": Plant("addressed events reach everybody", 5, "unmatched"),
    "vector-names-strangers": Plant(
        "vectors name edges that have left the network", 42, "protocol-error"
    ),
    "departs-undrained": Plant("an edge leaves before others have its events", 231, "lost"),
    "commit-without-intent": Plant(
        "events of a batch are appended before its intent is on disk", 31, "torn-batch"
    ),
    "stage-dropped-early": Plant(
        "staged events are dropped before their batch is on disk", 354, "torn-batch"
    ),
    "redo-forgotten": Plant("a start leaves intents as it finds them", 19, "torn-batch"),
    "batch-not-persisted": Plant(
        "a sink forgets the number of its last batch in a crash", 11, "double-batch"
    ),
    "commit-told-early": Plant(
        "a batch is told to be there before its intent is on disk", 31, "lost-batch"
    ),
    "client-no-dedup": Plant("a client takes what it has had", 4, "duplicate"),
    "publisher-moves-unconfirmed": Plant("a publisher moves with open events", 6, "phantom"),
    "reports-again": Plant(
        "a join point does not look which matches are reported", 12, "duplicate-pattern"
    ),
    "ready-at-once": Plant(
        "a join point reports before it knows what is reported", 157, "duplicate-pattern"
    ),
    "acks-all": Plant(
        "a join point acknowledges events that it still needs", 21, "missed-pattern", mesh_seed=25
    ),
    "watermark-greatest": Plant(
        "a join point goes by the stream that is farthest", 25, "missed-pattern", mesh_seed=25
    ),
    "takes-fleeting": Plant(
        "a join point counts events that nobody has to keep", 12, "false-pattern", mesh_seed=12
    ),
    "bound-grows": Plant(
        "a join point that starts again lets one match more end with an event",
        25,
        "excess-pattern",
    ),
    "printed-algorithm": Plant(
        "copies are for all of a tree, by the cheapest link, as printed", 36, "hop-bound", "mesh"
    ),
    "copy-per-target": Plant("every target gets a copy of its own", 1, "second-copy", "mesh"),
    "targets-unsorted": Plant(
        "every neighbour gets all targets of a copy", 1, "second-path", "mesh"
    ),
    "adds-targets": Plant(
        "copies are passed on to all edges of their tree", 1, "stray-target", "mesh"
    ),
    "hops-halved": Plant("half of the hops that are left are lost", 3, "hop-bound", "mesh"),
    "former-untold": Plant("former parents are not told that they are", 1, "two-parents", "mesh"),
    "parent-any": Plant("a lost parent is replaced by any neighbour", 13, "stuck", "mesh"),
    "edition-ignored": Plant(
        "origins filter for edges that have not read the advertisements", 0, "gap", "mesh"
    ),
    "withdrawal-ignored": Plant(
        "events are filtered as if nothing had been withdrawn since", 17, "gap", "mesh"
    ),
    "silence-promoted": Plant(
        "silence that waits is told with the version of later ticks", 6, "gap", "mesh"
    ),
    "no-rebinding": Plant("new advertisements attract no known interest", 0, "s-lambda", "mesh"),
    "base-ignored": Plant("a change of interest applies to any state", 10, "s-lambda", "mesh"),
    "tree-never-ends": Plant(
        "a tree stays when its advertisements are withdrawn", 4, "leftover", "mesh"
    ),
    "version-of-now": Plant(
        "silence has the version known now, not that of its mark", 4, "gap", "mesh"
    ),
    "starts-unasked": Plant(
        "an origin goes on with an old copy of its log", 2, "tick-reused", faults="rollback"
    ),
    # Where several links come back, a wave for another reason nearly always helps.
    "never-seeks": Plant(
        "a broker that lost its way asks for none", 1, "stuck", "mesh", faults="divide"
    ),
}

#: Planted bugs that need histories which the swarm draws too seldom: name → who finds them.
FOUND_BY_HISTORIES = {
    "minus-ignored-aggregation": "tests/unit/core/routing/tree/test_turmoil.py",
    # Shows only to a client that forgot everything while its edge was down.
    "done-unsynced": "tests/unit/core/test_edge_plants.py",
    # Shows only where a join point cannot publish for a while, and its broker crashes then.
    "reported-early": "tests/unit/core/points/test_join_points.py",
    # In calm worlds nothing is published for long, and what brings no traffic stays.
    "never-rests": "tests/unit/core/points/test_placing.py",
    # Shows only if an answer is lost, and the next move comes before it was said again.
    "gives-unsettled": "tests/unit/core/points/test_placing.py",
}
