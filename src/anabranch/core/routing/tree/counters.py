"""What the tree counts about itself: the work that routing costs and saves.

Plain numbers that only grow, for evaluation and for tests; nothing decides by them.
"""


class Counters:
    """Numbers of one broker."""

    __slots__ = (
        "answers_sent",
        "asks_sent",
        "changes_applied",
        "changes_refused",
        "changes_sent",
        "conjunctions_sent",
        "data_filtered",
        "data_forwarded",
        "data_unfiltered",
        "full_states_sent",
        "knowledge_dropped",
        "knowledge_sent",
        "marks_sent",
        "matches",
        "matches_assumed",
        "states_applied",
        "states_ignored",
        "states_sent",
        "sufficiency_asked",
        "sufficiency_elements",
        "sufficiency_tests",
        "vector_elements_sent",
    )

    def __init__(self) -> None:
        #: Interest states sent because somebody asked.
        self.answers_sent = 0
        self.asks_sent = 0
        self.changes_applied = 0
        self.changes_refused = 0
        self.changes_sent = 0
        #: In changes and states.
        self.conjunctions_sent = 0
        #: Events per direction: made silent, sent on, and of these, sent without being matched.
        self.data_filtered = 0
        self.data_forwarded = 0
        self.data_unfiltered = 0
        #: Interest states sent by the edge itself, to repair a lag.
        self.full_states_sent = 0
        #: Frames that no broker of a site could take.
        self.knowledge_dropped = 0
        #: Frames over links.
        self.knowledge_sent = 0
        self.marks_sent = 0
        #: Events looked up in an index.
        self.matches = 0
        #: Those of them that were sent on further than must be, because too many filters would have
        #: had to be checked in one step.
        self.matches_assumed = 0
        self.states_applied = 0
        self.states_ignored = 0
        self.states_sent = 0
        #: Questions put, elements of vectors compared, and tests made.
        self.sufficiency_asked = 0
        self.sufficiency_elements = 0
        self.sufficiency_tests = 0
        #: Elements of vectors in marks, changes, states and asks.
        self.vector_elements_sent = 0

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return {name: getattr(self, name) for name in self.__slots__}
