"""Mutants of routing on trees: interest, versions, vectors and sufficiency."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_PRESENCE = "anabranch.core.routing.tree.presence:Presence"
_ROUTER = "anabranch.core.routing.tree.tree:TreeRouter"
_FORWARDING = "anabranch.core.routing.tree.forwarding:Forwarding"
_CONSTRAINT_HOLDS = "all(known.get(edge, NOTHING) == v for edge, v in frame.constraint.items())"

MUTANTS: dict[str, Mutant] = {
    "no-sufficiency": Mutant(
        "filters are used without knowing enough",
        Edit(f"{_FORWARDING}.knowledge", "self._sufficiency.holds(stream, mark, d)", "True"),
        seed=9,
        anomaly="gap",
    ),
    "constraint-at-least": Mutant(
        "a change applies to later states too",
        Edit(f"{_PRESENCE}._applies", _CONSTRAINT_HOLDS, _CONSTRAINT_HOLDS.replace("==", ">=")),
        seed=3,
        anomaly="leftover",
    ),
    "no-constraint": Mutant(
        "a change applies to any state",
        Edit(f"{_PRESENCE}._applies", _CONSTRAINT_HOLDS, "True"),
        seed=45,
        anomaly="s-lambda",
    ),
    "digest-survives-link": Mutant(
        "what a broken link carried counts as known",
        Edit(f"{_ROUTER}.link_down", "self._shared.marks.forget_link(peer)", "pass"),
        Edit(
            f"{_ROUTER}._mark_requested",
            "self._shared.marks.record_sent(peer, frame.stream, frame.mark)",
            "if not self._shared.marks.record_sent(peer, frame.stream, frame.mark):\n    return",
        ),
        seed=22,
        anomaly="unknown-vector",
    ),
    "vst-too-low": Mutant(
        "a subscription starts with the version before it",
        Edit(
            "anabranch.core.routing.interest_clock:InterestClock.add_in_slices",
            "self._fresh[subscription] = None",
            "if version == self.current and self._counter > 1:\n"
            "    early = _RegisteredSubscription(self.propagated, tuple(ids))\n"
            "    self._subscriptions[subscription] = early\n"
            "self._fresh[subscription] = None",
        ),
        seed=0,
        anomaly="s-lambda",
    ),
    "silence-without-vector": Mutant(
        "silence comes without its vector",
        Edit(
            f"{_FORWARDING}._forward",
            "mark = frame.mark",
            "mark = 0 if silent and not data else frame.mark",
        ),
        Edit(
            f"{_ROUTER}._arrive",
            "parts = frame.data,",
            "if not frame.mark and self.clock is not None:\n"
            "    version = self.clock.propagated\n"
            "parts = frame.data,",
        ),
        seed=0,
        anomaly="gap",
    ),
    "state-keeps-old": Mutant(
        "a new life's interest is added to the old one",
        Edit(
            f"{_PRESENCE}._state",
            "self.interest.replace_in_slices(source, conjuncts)",
            "self.interest.change_in_slices(source, conjuncts, ())",
        ),
        seed=2,
        anomaly="leftover",
    ),
    "minus-ignored-aggregation": Mutant(
        "a change's constraint leaves out what covering swallowed",
        Edit(
            f"{_PRESENCE}._pass_on",
            "before[direction] if change.aggregated else constraint",
            "constraint",
        ),
        found_by="tests/unit/core/routing/tree/test_turmoil.py",
    ),
}
