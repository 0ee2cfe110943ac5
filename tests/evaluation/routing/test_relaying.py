"""Relays: real frames, in and out, and every event for exactly as many edges as is said."""

import pytest

from anabranch.model.encoding import decode_envelope
from anabranch.model.filter import Filter
from anabranch.model.frames import Knowledge
from anabranch.model.mesh_frames import Copies
from anabranch.wire.codec import decode_link
from evaluation.routing.mesh_relays import (
    KINDS,
    TOGETHER,
    Groups,
    Kind,
    RelayJob,
    Row,
    Way,
    relay,
    relay_jobs,
)

TARGETS = (1, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_wanted_by_as_many_edges_as_is_said(kind: Kind) -> None:
    groups = Groups(40, TARGETS, kind)
    assert sum(map(len, groups.wanted.values())) == 40
    for targets in TARGETS:
        for body in groups.events(targets):
            attributes = decode_envelope(body).attributes()
            edges = [
                edge
                for edge, texts in groups.wanted.items()
                for text in texts
                if Filter.parse(text).matches(attributes)
            ]
            assert len(edges) == len(set(edges)) == targets


@pytest.mark.parametrize("kind", KINDS)
def test_no_subscription_covers_another_one(kind: Kind) -> None:
    groups = Groups(30, TARGETS, kind)
    filters = [Filter.parse(text) for texts in groups.wanted.values() for text in texts]
    assert not [1 for one in filters for other in filters if one is not other and one.covers(other)]


@pytest.mark.parametrize("way", ["mesh", "tree", "flood", "look-up"])
def test_all_ways_are_measured_for_all_targets(way: Way) -> None:
    job = RelayJob(way=way, subscriptions=20, targets=TARGETS, times=1)
    found = relay(job)
    said = [(each.targets, each.together) for each in found]
    assert said == [(targets, together) for targets in TARGETS for together in TOGETHER]
    assert all(each.event_us > 0 for each in found)
    assert all((each.event_bytes > 0) is (way != "look-up") for each in found)


def test_frames_of_a_mesh_grow_with_targets_and_those_of_a_tree_do_not() -> None:
    sizes = {}
    ways: tuple[Way, ...] = ("mesh", "tree")
    for way in ways:
        job = RelayJob(way=way, subscriptions=60, targets=(1, 20), times=1)
        sizes[way] = {e.targets: e.event_bytes for e in relay(job) if e.together == 1}
    assert sizes["mesh"][20] > 3 * sizes["mesh"][1]
    assert sizes["tree"][20] < 1.1 * sizes["tree"][1]


def test_relay_of_a_tree_keeps_back_what_nobody_wants() -> None:
    groups = Groups(20, TARGETS)
    row = Row("tree", 1, ("o", "e1"))
    row.subscribe({"e1": groups.wanted["e1"]})
    bodies = groups.events(1)
    passed = [decode_link(data) for data in row.relay(row.publish(bodies, 1))]
    events = [
        datum.body for frame in passed if isinstance(frame, Knowledge) for datum in frame.data
    ]
    assert 0 < len(events) < len(bodies)


def test_copies_come_to_the_relay_with_their_targets() -> None:
    groups = Groups(20, TARGETS)
    row = Row("mesh", 3)
    row.subscribe(groups.wanted)
    frames = [decode_link(data) for data in row.publish(groups.events(3), 1)]
    assert {len(f.targets) for f in frames if isinstance(f, Copies)} == {3}


def test_jobs_have_all_sizes_and_kinds_and_less_on_a_smaller_scale() -> None:
    full, tiny = relay_jobs(1.0), relay_jobs(0.01)
    assert {job.subscriptions for job in full if job.way == "tree"} == {1_000, 10_000, 100_000}
    assert {job.kind for job in full if job.way == "look-up"} == set(KINDS)
    assert max(job.subscriptions for job in tiny) < max(job.subscriptions for job in full)
    assert [job.way for job in full[-2:]] == ["mesh", "flood"]
