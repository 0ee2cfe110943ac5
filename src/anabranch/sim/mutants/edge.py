"""Mutants of edges: subscriptions, delivery, cursors and ownership."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_DELIVERY = "anabranch.core.edge.delivery:LiveDelivery"
_CATCH_UP = "anabranch.core.edge.delivery:CatchUp"
_CURSORS = "anabranch.core.edge.cursors:Cursors"
_STREAM = "anabranch.core.edge.subscriptions:EdgeStream"
_EDGE = "anabranch.core.edge.edge:Edge"
_UNSUBSCRIPTION = "anabranch.core.edge.unsubscribe:Unsubscription"
_OWNERSHIP = "anabranch.core.edge.unsubscribe:Ownership"
_ATTACHMENTS = "anabranch.core.edge.subscribe:Attachments"

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
            f"{_DELIVERY}._start_position",
            "subscription.start(stream, tick)",
            "subscription.start(stream, tick - (tick > 1))",
        ),
        seed=0,
        anomaly="gap",
    ),
    "start-ignores-version": Mutant(
        "a subscription starts with any tick",
        Edit(f"{_DELIVERY}._start", "if earliest is None or earliest > version:", "if False:"),
        Edit(
            f"{_STREAM}.startable",
            "if first_version is None or first_version > version:",
            "if first_version is None:",
        ),
        Edit(
            f"{_STREAM}.go_live",
            "NOTHING if subscription.version is None else subscription.version",
            "NOTHING",
        ),
        seed=0,
        anomaly="gap",
    ),
    "unsubscribe-early": Mutant(
        "interest goes a second before the end is reached",
        Edit(
            f"{_UNSUBSCRIPTION}.__init__",
            "self._state = state",
            "self._state = state\nself.late = []",
        ),
        Edit(
            f"{_UNSUBSCRIPTION}.unsubscribe",
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
            "    if frame.subscription in session.subscriptions:\n"
            "        self._unsubscription.unsubscribe(now, session, frame)",
        ),
        Edit(
            f"{_EDGE}.next_deadline",
            "state.requests.next_repeat_at)",
            "state.requests.next_repeat_at, *(at for at, _, _ in self._unsubscription.late[:1]))",
        ),
        seed=0,
        anomaly="lost",
    ),
    "deliver-before-start-synced": Mutant(
        "a durable start is used unsynced, and written only after many acknowledgements",
        Edit(
            f"{_DELIVERY}._start_position",
            "if subscription.is_durable:",
            "if subscription.is_durable:\n    position.written += PROGRESS_TICKS\nif False:",
        ),
        # The position itself would object.
        Edit(
            "anabranch.core.edge.subscriptions:StreamPosition.stored",
            "assert tick <= self.written <= self.acked, (tick, self.written, self.acked)",
            "pass",
        ),
        seed=63,
        anomaly="late-start",
    ),
    "skip-gap": Mutant(
        "an edge gives a gap up after asking once",
        Edit(
            f"{_EDGE}._check_gaps",
            "if stream.lossless_count:",
            "if stream.lossless_count and not buffer.attempts:",
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
            f"{_CURSORS}._needed_after",
            "if position.is_removed:",
            "uncounted = vars(self._state).get('uncounted', ())\n"
            "if position.is_removed or position.subscription in uncounted:",
        ),
        Edit(
            f"{_ATTACHMENTS}._commit",
            "subscription.renumber(attach.number)",
            "subscription.renumber(attach.number)\n"
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
            "elif run.datum is None and stream.required_version() > run.version:",
            "elif False:",
        ),
        Edit(
            f"{_CATCH_UP}._is_version_missing",
            "return version is None or version > run.version",
            "return False",
        ),
        seed=6,
        anomaly="gap",
    ),
    "withheld-one-more": Mutant(
        "one tick more is withheld than the log lacks",
        Edit(f"{_CATCH_UP}.not_kept", "last = answer.oldest - 1", "last = answer.oldest"),
        seed=4,
        anomaly="wrongly-withheld",
    ),
    "old-events-replayed": Mutant(
        "replays bring events past their limits",
        Edit(
            f"{_CATCH_UP}._take_run",
            "if is_beyond_limits(now, run, envelope, position.stream.hops):",
            "if False:",
        ),
        seed=12,
        anomaly="unmatched",
    ),
    "hold-one-late": Mutant(
        "an explicit start is one tick late",
        Edit(f"{_ATTACHMENTS}.held", "source, asked.tick)", "source, asked.tick + 1)"),
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
            "if unmet is None or not _is_concerned(position):",
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
            f"{_CURSORS}._needed_after",
            "position.synced if position.subscription.is_durable else position.acked",
            "position.acked",
        ),
        found_by="tests/unit/core/test_edge_mutants.py",
    ),
}
