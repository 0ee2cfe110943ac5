"""Mutants of join points: what they take, report and acknowledge, and where they are placed."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_POINT = "anabranch.core.patterns.join_points.join_point:JoinPoint"
_PLACEMENT = "anabranch.core.patterns.join_points.placement"

MUTANTS: dict[str, Mutant] = {
    "reports-again": Mutant(
        "a join point does not look which matches are reported",
        Edit(
            f"{_POINT}._publish",
            "if digest_of(match.identity) in self._detection.reports:",
            "if False:",
        ),
        seed=21,
        anomaly="duplicate-pattern",
    ),
    "ready-at-once": Mutant(
        "a join point reports before it knows what is reported",
        Edit(f"{_POINT}._becomes_ready", "if is_missing:", "if False:"),
        seed=25,
        anomaly="duplicate-pattern",
    ),
    "acks-all": Mutant(
        "a join point acknowledges events that it still needs",
        Edit(
            f"{_POINT}._acknowledge",
            "self._detection.unacked.ticks(self._processed_ticks())",
            "dict(self._client.progress(self._name))",
        ),
        seed=21,
        anomaly="missed-pattern",
        mesh_seed=12,
    ),
    "watermark-greatest": Mutant(
        "a join point goes by the stream that is farthest",
        Edit(
            "anabranch.core.patterns.join_points.detection:DetectionClock._advance",
            "watermark_ns = self._bounds.watermark_ns(times)",
            "watermark_ns = self._bounds.watermark_ns(times)\n"
            "if INT_MIN not in times.values():\n"
            "    watermark_ns = max(times.values())",
        ),
        seed=25,
        anomaly="missed-pattern",
        mesh_seed=25,
    ),
    "takes-fleeting": Mutant(
        "a join point counts events that nobody has to keep",
        Edit(
            "anabranch.core.patterns.join_points.detection:PatternDetection.take",
            "if is_old or not envelope.control.is_kept:",
            "if is_old:",
        ),
        seed=12,
        anomaly="false-pattern",
        mesh_seed=12,
    ),
    "bound-grows": Mutant(
        "a join point that starts again lets one match more end with an event",
        Edit(
            "anabranch.core.patterns.join_points.registry:JoinPointState._pattern",
            "return known",
            "matches_max = self.limits.pattern_matches_max + record.incarnation\n"
            "grown = replace(self.limits, pattern_matches_max=matches_max)\n"
            "scheme = type(known.scheme)(known.scheme.pattern, record.id, grown)\n"
            "return known._replace(scheme=scheme)",
        ),
        seed=25,
        anomaly="excess-pattern",
    ),
    # Shows only where a join point cannot publish for a while, and its broker crashes then.
    "reported-early": Mutant(
        "a join point writes down as reported what is not in the log",
        Edit(
            f"{_POINT}._reported_ns",
            "min([self._detection.horizon_ns, *unsure])",
            "self._detection.horizon_ns",
        ),
        found_by="tests/unit/core/patterns/join_points/test_join_points.py",
    ),
    # In calm worlds nothing is published for long, and what brings no traffic stays.
    "never-rests": Mutant(
        "a pattern moves whether another place is better or not",
        Edit(f"{_PLACEMENT}:review_pause_s", " * 2.0 ** min(restless, RESTLESS_MAX)", ""),
        Edit(f"{_PLACEMENT}:better_edge", 'best if is_better else ""', "best"),
        found_by="tests/unit/core/patterns/join_points/test_placement.py",
    ),
    # Shows only if an answer is lost, and the next move comes before it was said again.
    "gives-unsettled": Mutant(
        "a join point is given on before its giver has forgotten it",
        Edit(
            "anabranch.core.patterns.join_points.registry:JoinPointMoves.may_give",
            " and not point.record.came_from",
            "",
        ),
        found_by="tests/unit/core/patterns/join_points/test_placement.py",
    ),
}
