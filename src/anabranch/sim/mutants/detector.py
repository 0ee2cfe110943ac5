"""Mutants of the detector of patterns. Seeds hardly show them; properties do."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_PATTERNS = "anabranch.core.patterns"
_DETECTOR = f"{_PATTERNS}.detector:Detector"
_COMBINING = f"{_PATTERNS}.search:AllMatchesSearch"
_CHOOSING = f"{_PATTERNS}.search:FirstMatchesSearch"
_PACKED = f"{_PATTERNS}.detector_state:packed"
_PROPERTIES = "tests/property/test_pattern_properties.py"
_BOUNDS = "tests/property/test_match_bounds.py"
_STATE = "= detector.kept, detector.waiting, detector.pending"

MUTANTS: dict[str, Mutant] = {
    "absence-early": Mutant(
        "an absence counts as over at its last moment",
        Edit(
            f"{_DETECTOR}._decide_due",
            "pending[0][0] < self.horizon_ns",
            "pending[0][0] < self.horizon_ns + 1",
        ),
        found_by=_PROPERTIES,
    ),
    "absent-joins": Mutant(
        "absent attributes are equal to each other",
        Edit(
            f"{_DETECTOR}.entry_of",
            "key_of(attributes.get(name))",
            "'' if attributes.get(name) is None else key_of(attributes[name])",
        ),
        found_by=_PROPERTIES,
    ),
    "cuts-first": Mutant(
        "the first match is left out, and not those behind the bound",
        Edit(f"{_DETECTOR}._first", "del found[-1]", "del found[0]"),
        found_by=_BOUNDS,
    ),
    "demand-short": Mutant(
        "what is exactly a window away is not counted before a search",
        Edit(
            f"{_PATTERNS}.scheme:FeasibilityCheck._demands",
            "if some & bits)",
            "if some & bits) - 1",
        ),
        found_by=_PROPERTIES,
    ),
    "ends-early": Mutant(
        "an event of the same time as the last one of a list is taken to be behind it",
        Edit(
            f"{_COMBINING}._fill",
            "if items[-1] < filled[slot]:",
            "if items[-1] < filled[slot] or items[-1][0] == filled[slot][0]:",
        ),
        found_by=_PROPERTIES,
    ),
    "forgets-early": Mutant(
        "events are forgotten a moment too early",
        Edit(
            f"{_DETECTOR}._forget", "- self.scheme.retention_ns", "- self.scheme.retention_ns + 1"
        ),
        found_by=_PROPERTIES,
    ),
    "forgets-pending": Mutant(
        "matches that are not final are lost when the state moves",
        Edit(_PACKED, _STATE, "= detector.kept, detector.waiting, []"),
        found_by=_PROPERTIES,
    ),
    "forgets-reported": Mutant(
        "what was reported at once is forgotten when the state moves",
        Edit(_PACKED, "for each in endings.reported]", "for each in ()]"),
        found_by=_BOUNDS,
    ),
    "forgets-waiting": Mutant(
        "events that wait for their turn are lost when the state moves",
        Edit(_PACKED, _STATE, "= detector.kept, [], detector.pending"),
        found_by=_PROPERTIES,
    ),
    "kinds-join": Mutant(
        "TRUE joins 1",
        Edit(f"{_DETECTOR}.entry_of", "key_of(attributes.get(name))", "attributes.get(name)"),
        found_by=_PROPERTIES,
    ),
    "last-is-first": Mutant(
        "LAST keeps what FIRST keeps",
        Edit(f"{_CHOOSING}.__init__", 'scheme.pattern.policy != "LAST"', "True"),
        found_by=_PROPERTIES,
    ),
    "one-event-twice": Mutant(
        "one event stands for two parts",
        Edit(f"{_COMBINING}._fill", "if id(entry) in used:", "if False:"),
        found_by=_PROPERTIES,
    ),
    "reports-crowded": Mutant(
        "what is beyond the bound is reported all the same",
        Edit(
            f"{_DETECTOR}._complete",
            "self._endings.may_report(filled)",
            "self._endings.may_report(filled) or True",
        ),
        found_by=_BOUNDS,
    ),
    "span-short": Mutant(
        "the last entry that a slot can have is left out",
        Edit(
            f"{_COMBINING}._in_spans",
            "bisect_right(items, latest, first)",
            "bisect_left(items, latest, first)",
        ),
        found_by=_PROPERTIES,
    ),
    "stops-early": Mutant(
        "a choice ends at the last entry of a slot, not behind it",
        Edit(
            f"{_CHOOSING}._nexts",
            "if entry > stop if self._is_first else entry < stop:",
            "if entry >= stop if self._is_first else entry <= stop:",
        ),
        found_by=_PROPERTIES,
    ),
    "takes-again": Mutant(
        "an event that comes again is taken again",
        Edit(f"{_DETECTOR}.take_known", "if place in self._known:", "if False:"),
        found_by=_PROPERTIES,
    ),
    "takes-late": Mutant(
        "late events are taken, and nobody is told",
        Edit(f"{_DETECTOR}.take_known", "if event.time_ns < self.horizon_ns:", "if False:"),
        found_by=_PROPERTIES,
    ),
    "time-order": Mutant(
        "THEN wants a later time, though streams and ticks order too",
        Edit(
            f"{_COMBINING}._bounds",
            "low = max(low, filled[slot])",
            "low = max(low, (filled[slot][0] + 1,))",
        ),
        Edit(
            f"{_COMBINING}._bounds",
            "high = min(high, filled[slot])",
            "high = min(high, (filled[slot][0],))",
        ),
        found_by=_PROPERTIES,
    ),
    "wants-more": Mutant(
        "a slot ahead has to have two entries",
        Edit(
            f"{_CHOOSING}._nexts",
            "else ():\n    found = self._range(filling, each, previous)\n    if found.first >=",
            "else ():\n    found = self._range(filling, each, previous)\n    if found.first + 1 >=",
        ),
        found_by=_PROPERTIES,
    ),
    "window-open": Mutant(
        "events exactly a window apart are not within it",
        Edit(f"{_PATTERNS}.plan:SearchPlan._nearest", "(one, length)", "(one, length - 1)"),
        found_by=_PROPERTIES,
    ),
    "witness-side": Mutant(
        "a witness is looked up with the wrong side of a join",
        Edit(
            f"{_PATTERNS}.event_store:Absences._wanted",
            "entries[slot][3][other]",
            "entries[slot][3][attribute]",
        ),
        found_by=_PROPERTIES,
    ),
}
