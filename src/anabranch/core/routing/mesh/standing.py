"""Standing: where a broker is in one tree, and where its neighbours say that they are.

A broker stands at a wave and a distance; who is nearer, and why that makes no loop, is said in
`trees`, which changes all of this.

State: volatile; learned again from the neighbours.
"""


class Standing:
    """Where a broker stands in one tree."""

    __slots__ = ("distance", "heard", "is_root", "parent", "passed_on", "searches", "wave")

    def __init__(self, wave: int, distance: int, parent: str | None) -> None:
        self.wave = wave
        self.distance = distance
        #: None: there is no way, or this is the root.
        self.parent = parent
        self.is_root = False
        #: Neighbour → the wave and distance that it told last.
        self.heard: dict[str, tuple[int, int]] = {}
        #: The search that was passed on last: for which wave, and when.
        self.passed_on: tuple[int, float] = (0, 0.0)
        #: How often a way was sought since there is none.
        self.searches = 0

    @property
    def is_reached(self) -> bool:
        """Whether there is a way to the root."""
        return self.parent is not None or self.is_root

    def nearest(self) -> str | None:
        """The best neighbour that is nearer (rule 2 of `trees`)."""
        nearer = [
            (-wave, distance, peer)
            for peer, (wave, distance) in self.heard.items()
            if wave > self.wave or (wave == self.wave and distance < self.distance)
        ]
        return min(nearer)[2] if nearer else None

    def near(self) -> dict[str, int]:
        """Neighbours that are nearer to the root, by the same wave, and how far they are."""
        return {
            peer: distance
            for peer, (wave, distance) in self.heard.items()
            if wave == self.wave and distance < self.distance
        }
