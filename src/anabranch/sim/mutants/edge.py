"""Mutants of edges: subscriptions, delivery, cursors and ownership."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_DELIVERY = "anabranch.core.edge.delivery:LiveDelivery"
_BEHIND = "anabranch.core.edge.catch_up:CatchUp"
_CURSORS = "anabranch.core.edge.cursors:Cursors"
_EDGE = "anabranch.core.edge.edge:Edge"
_LEAVING = "anabranch.core.edge.unsubscribe:Unsubscription"
_OWNERSHIP = "anabranch.core.edge.unsubscribe:Ownership"
_ATTACHING = "anabranch.core.edge.subscribe:Attachments"

MUTANTS: dict[str, Mutant] = {
    "edge-no-dedup": Mutant(
        "ticks that come again are taken again",
        Edit(
            "anabranch.core.edge.reorder_buffer:ReorderBuffer.take",
            "if run.last <= self.position:",
            "if run.last <= self.position:\n"
            "    if run.datum is not None:\n"
            "        ready.append(run)",
        ),
        seed=4,
        anomaly="repeated",
    ),
    "start-one-early": Mutant(
        "a start is claimed one tick too early",
        Edit(
            f"{_DELIVERY}._start",
            "StreamPosition(subscription, stream, tick)",
            "StreamPosition(subscription, stream, tick - (tick > 1))",
        ),
        seed=0,
        anomaly="gap",
    ),
    "start-ignores-version": Mutant(
        "a subscription starts with any tick",
        Edit(f"{_DELIVERY}._start", "if earliest is None or earliest > version:", "if False:"),
        Edit(f"{_DELIVERY}._start", "if wanted is None or wanted > version:", "if wanted is None:"),
        Edit(f"{_DELIVERY}.enter", "NOTHING if version is None else version", "NOTHING"),
        seed=0,
        anomaly="gap",
    ),
    "unsubscribe-early": Mutant(
        "interest goes a second before the end is reached",
        Edit(
            f"{_LEAVING}.__init__",
            "self._state = state",
            "self._state = state\nself.late = []",
        ),
        Edit(
            f"{_LEAVING}.unsubscribe",
            "ticks = {\n",
            "if subscription.is_registered:\n"
            "    state.unregister(subscription)\n"
            "    self.late.append((now + 1.0, session, frame))\n"
            "    return\n"
            "ticks = {\n",
        ),
        Edit(
            f"{_EDGE}._timers",
            "state.begin()",
            "state.begin()\n"
            "while self._unsubscription.late and self._unsubscription.late[0][0] <= now:\n"
            "    _, session, frame = self._unsubscription.late.pop(0)\n"
            "    if frame.subscription in session.names:\n"
            "        self._unsubscription.unsubscribe(now, session, frame)",
        ),
        Edit(
            f"{_EDGE}.next_deadline",
            "state.requests.next_at)",
            "state.requests.next_at, *(at for at, _, _ in self._unsubscription.late[:1]))",
        ),
        seed=0,
        anomaly="lost",
    ),
    "deliver-before-start-synced": Mutant(
        "a durable start is used unsynced, and written only after many acknowledgements",
        Edit(
            f"{_DELIVERY}._begin",
            "if subscription.is_durable:",
            "if subscription.is_durable:\n    place.written += PROGRESS_TICKS\nif False:",
        ),
        seed=44,
        anomaly="late-start",
    ),
    "skip-gap": Mutant(
        "an edge gives a gap up after asking once",
        Edit(
            f"{_EDGE}._check_gaps",
            "if stream.needing:",
            "if stream.needing and not line.attempts:",
        ),
        seed=5,
        anomaly="gap",
    ),
    "no-yield": Mutant(
        "a former owner keeps a subscription, and nobody keeps what it needs",
        Edit(
            f"{_OWNERSHIP}._give_up",
            "if subscription.session is not None:",
            "vars(state).setdefault('uncounted', set()).add(subscription)\n"
            "state.carry(source, Yield(name, number))\n"
            "return\n"
            "if subscription.session is not None:",
        ),
        Edit(
            f"{_CURSORS}._needs_after",
            "if place.is_over:",
            "if place.is_over or place.subscription in vars(self._state).get('uncounted', ()):",
        ),
        Edit(
            f"{_ATTACHING}._commit",
            "subscription.is_claimed = subscription.is_stored = False",
            "subscription.is_claimed = subscription.is_stored = False\n"
            "vars(state).get('uncounted', set()).discard(subscription)",
        ),
        seed=6,
        anomaly="two-owners",
    ),
    "claim-before-held": Mutant(
        "a subscription is claimed before origins keep what it needs",
        Edit(f"{_OWNERSHIP}._may_claim", " and not subscription.is_holding", ""),
        found_by="tests/unit/core/test_edge_mutants.py",
    ),
    "silence-any-version": Mutant(
        "silence counts for subscriptions it does not know",
        Edit(
            f"{_DELIVERY}.advance",
            "elif run.datum is None and stream.floor() > run.version:",
            "elif False:",
        ),
        Edit(
            f"{_BEHIND}._is_version_missing",
            "return version is None or version > run.version",
            "return False",
        ),
        seed=6,
        anomaly="gap",
    ),
    "withheld-one-more": Mutant(
        "one tick more is withheld than the log lacks",
        Edit(f"{_BEHIND}.not_kept", "last = answer.oldest - 1", "last = answer.oldest"),
        seed=4,
        anomaly="wrongly-withheld",
    ),
    "old-events-replayed": Mutant(
        "replays bring events past their limits",
        Edit(
            f"{_BEHIND}._take_run",
            "if is_beyond_limits(now, run, envelope, place.stream.hops):",
            "if False:",
        ),
        seed=12,
        anomaly="unmatched",
    ),
    "hold-one-late": Mutant(
        "an explicit start is one tick late",
        Edit(f"{_ATTACHING}.held", "= asked.tick\n", "= asked.tick + 1\n"),
        seed=0,
        anomaly="late-start",
    ),
    "destinations-ignored": Mutant(
        "addressed events reach everybody",
        Edit(
            f"{_DELIVERY}._addressed",
            "if not envelope.header.control.destinations:",
            "if True:",
        ),
        seed=5,
        anomaly="unmatched",
    ),
    "after-ignored": Mutant(
        "an edge delivers an event before those of another stream that it follows",
        Edit(
            "anabranch.core.edge.publisher_order:PublisherOrder.verdict",
            "if unmet is None or not _is_concerned(place):",
            "if True:",
        ),
        seed=37,
        anomaly="publisher-reordered",
    ),
    # Shows only to a client that forgot everything while its edge was down.
    "done-unsynced": Mutant(
        "origins are told of cursors that are not on disk",
        Edit(f"{_CURSORS}.write", "if not self._is_writing:", "if False:"),
        Edit(
            f"{_CURSORS}._needs_after",
            'place.synced if place.subscription.quality == "durable" else place.acked',
            "place.acked",
        ),
        found_by="tests/unit/core/test_edge_mutants.py",
    ),
}
