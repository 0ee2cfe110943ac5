"""Trees: for every root, the neighbour that leads towards it.

Every edge is the root of trees. It sends out *waves*; a broker takes the neighbour from which it
heard of a wave first as its *parent*, is one farther away than that one said, and tells all others.
What it hears of the same wave later is remembered and told to nobody, unless it makes the way
shorter: a link that came up late is not left aside for that. So a wave goes over each link once in
a direction, and seldom again, and its tree is the one that was quickest at the time, or a shorter
one. Rules:

1. A broker stands at (wave, distance), and *nearer* is a later wave, or the same one and a smaller
   distance. Where it stands never gets farther.
2. A parent must have been nearer, by what it said itself, than the broker stands. Since nobody
   gets farther, parents are nearer along every way at every moment: there is no loop, whatever is
   lost or late.
3. A parent whose link breaks is replaced by a neighbour that was nearer; if there is none, the
   broker has no way, says so to nobody, and *seeks*: all brokers are asked for a later wave. The
   root, when it is asked, sends one out. It is asked again, more and more seldom, until one comes.
4. Two neighbours that meet tell each other all routes they have.
5. A broker that has restarted forgot where it stood, and may stand farther than before; its former
   neighbours dropped it as a parent when its links broke, so there is no loop either. But distances
   may grow so, time and again. A way with more hops than there are brokers is none: it is sought.
6. A root that begins a new life has new trees; those of its former lives are forgotten.

The first tree of an edge is always there: messages to the edge follow it. Further ones are made
for advertisements (see `advertisements`); they offer other ways.

State: volatile; learned again from the neighbours.

Prior art: advertisement trees of PADRES (spec PADRES section 2). Feasible successors and sequence
numbers as in DUAL (Garcia-Luna-Aceves 1993) and Babel (RFC 8966).
"""

from anabranch.core.routing.mesh.surroundings import DISTANCE_MAX, Surroundings
from anabranch.model.errors import RemoteError
from anabranch.model.mesh_frames import Route, Routes, Seek, TreeId

#: The pause between two searches grows to two to this power of the first one.
DOUBLINGS_MAX = 4
#: Part of the first timeout within which a search is not passed on again.
_MOMENT = 0.2
#: Beyond any wave that is ever sent out.
_WAVE_MAX = 1 << 60


class _Tree:
    """Where this broker stands in one tree."""

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
        """The best neighbour that is nearer (rule 2)."""
        nearer = [
            (-wave, distance, peer)
            for peer, (wave, distance) in self.heard.items()
            if wave > self.wave or (wave == self.wave and distance < self.distance)
        ]
        return min(nearer)[2] if nearer else None


class Trees:
    """All trees that one broker knows. See the rules at the top of this module."""

    def __init__(self, around: Surroundings, life: int) -> None:
        self._around = around
        self._life = life
        self._trees: dict[TreeId, _Tree] = {}
        #: Root → its newest life that was heard of.
        self.lives: dict[str, int] = {}
        #: Trees whose parent may have changed since somebody looked.
        self.changed: dict[TreeId, None] = {}
        self._lost: dict[TreeId, None] = {}
        self._seek_at: float | None = None

    # -- questions --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._trees)

    def __contains__(self, tree: TreeId) -> bool:
        return tree in self._trees

    def parent(self, tree: TreeId) -> str | None:
        """The neighbour that leads to the root; None if there is no way, or this is the root."""
        found = self._trees.get(tree)
        return None if found is None else found.parent

    def way_to(self, edge: str) -> str | None:
        """The neighbour that leads to an edge; None if there is no way."""
        life = self.lives.get(edge)
        return None if life is None else self.parent(TreeId(edge, life, 0))

    def distance_to(self, edge: str) -> int | None:
        """How far an edge is; None if there is no way."""
        life = self.lives.get(edge)
        found = None if life is None else self._trees.get(TreeId(edge, life, 0))
        return found.distance if found is not None and found.is_reached else None

    def lost(self) -> list[TreeId]:
        """Trees without a way to their root."""
        return list(self._lost)

    def stands(self) -> dict[TreeId, tuple[int, int, str | None]]:
        """Tree → wave, distance and parent; for whoever checks it."""
        return {name: (t.wave, t.distance, t.parent) for name, t in self._trees.items()}

    # -- own trees --------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """This broker is the root of a tree with this number, from now on."""
        name = TreeId(self._around.name, self._life, number)
        if name not in self._trees:
            self.lives[self._around.name] = self._life
            self._trees[name] = tree = _Tree(1, 0, None)
            tree.is_root = True
            self._around.tell_all(Routes([Route(name, 1, 0)]))

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> None:
        """A neighbour is there (rule 4). Perhaps it leads to what was sought in vain."""
        for name in self._lost:
            self._trees[name].searches = 0
            self._seek_at = now
        routes = [
            Route(name, tree.wave, tree.distance)
            for name, tree in self._trees.items()
            if tree.is_reached
        ]
        if routes:
            self._around.send(peer, Routes(routes))

    def link_down(self, now: float, peer: str) -> None:
        """A neighbour is gone (rule 3)."""
        for name, tree in self._trees.items():
            tree.heard.pop(peer, None)
            if tree.parent == peer:
                self._replace_parent(now, name, tree)

    def _replace_parent(self, now: float, name: TreeId, tree: _Tree) -> None:
        self.changed[name] = None
        tree.parent = tree.nearest()
        if "parent-any" in self._around.plants:
            tree.parent = min(tree.heard, default=None)
        if tree.parent is None:
            self._lose(now, name, tree)

    def _lose(self, now: float, name: TreeId, tree: _Tree) -> None:
        """There is no way (rules 3 and 5)."""
        if tree.parent is not None:
            tree.parent = None
            self.changed[name] = None
        if name not in self._lost:
            tree.searches = 0
            self._lost[name] = None
            self._seek_at = now

    # -- waves ------------------------------------------------------------------------------------

    def receive(self, now: float, peer: str, frame: Routes) -> None:
        """A neighbour tells its routes."""
        for route in frame.routes:
            self._check(peer, route)
        news = []
        for route in frame.routes:
            if self._learn(now, peer, route):
                tree = self._trees[route.tree]
                news.append(Route(route.tree, tree.wave, tree.distance))
        if news:
            self._around.tell_all(Routes(news), but=peer)

    def _check(self, peer: str, route: Route) -> None:
        name = route.tree
        self._around.check_edge(peer, name.origin)
        if name.number > self._around.options.trees_max:
            raise RemoteError(f"{peer!r} tells of tree {name.number} of {name.origin!r}")
        if name.origin == self._around.name and name.life >= self._life:
            own = self._trees.get(name)
            if own is None or route.wave > _WAVE_MAX:
                raise RemoteError(f"{peer!r} tells of a wave that this broker never sent out")

    def _learn(self, now: float, peer: str, route: Route) -> bool:
        """Take a route in; True if it is to be told onward."""
        name = route.tree
        if name.origin == self._around.name:
            self._outdo(route)
            return False
        if not self.hear_life(name.origin, name.life):
            return False
        tree = self._trees.get(name)
        if tree is None:
            self._trees[name] = tree = _Tree(0, DISTANCE_MAX, None)
        tree.heard[peer] = (route.wave, route.distance)
        is_shorter = route.wave == tree.wave and route.distance + 1 < tree.distance
        if route.wave > tree.wave:
            tree.wave, tree.distance = route.wave, DISTANCE_MAX
        elif not is_shorter and (tree.parent is not None or tree.nearest() != peer):
            return False
        if route.distance >= len(self._around.brokers):
            self._lose(now, name, tree)
            return False
        tree.distance = min(tree.distance, route.distance + 1)
        if tree.parent != peer:
            tree.parent = peer
            self.changed[name] = None
        self._lost.pop(name, None)
        return True

    def _outdo(self, route: Route) -> None:
        """Somebody tells of a later wave than there was: send one out that is later still."""
        own = self._trees.get(route.tree)
        if own is not None and route.wave > own.wave:
            own.wave = route.wave + 1
            self._around.tell_all(Routes([Route(route.tree, own.wave, 0)]))

    def hear_life(self, origin: str, life: int) -> bool:
        """An origin is said to have this life; False if it has a later one (rule 6)."""
        known = self.lives.get(origin, 0)
        if life > known:
            self.lives[origin] = life
            for name in [name for name in self._trees if name.origin == origin]:
                del self._trees[name]
                self._lost.pop(name, None)
                self.changed[name] = None
        return life >= known

    # -- searches ---------------------------------------------------------------------------------

    def sought(self, now: float, peer: str, frame: Seek) -> None:
        """Somebody has lost the way to some roots."""
        if frame.source == self._around.name:
            return
        self._around.check_edge(peer, next((t.origin for t, _ in frame.wanted), self._any_edge()))
        answers: list[Route] = []
        waves: list[Route] = []
        onward: list[tuple[TreeId, int]] = []
        for name, wave in frame.wanted:
            tree = self._trees.get(name)
            if tree is None:
                continue
            if tree.is_root and wave > tree.wave:
                tree.wave += 1
                waves.append(Route(name, tree.wave, 0))
            elif tree.wave >= wave and tree.is_reached:
                answers.append(Route(name, tree.wave, tree.distance))
            elif self._is_news(now, tree, wave):
                onward.append((name, wave))
        if waves:
            self._around.tell_all(Routes(waves))
        if answers:
            self._around.send(peer, Routes(answers))
        if onward:
            self._around.tell_all(Seek(frame.source, onward), but=peer)

    def _any_edge(self) -> str:
        return next(iter(self._around.edges))

    def _is_news(self, now: float, tree: _Tree, wave: int) -> bool:
        before, at = tree.passed_on
        moment_s = _MOMENT * self._around.options.lag_after_s
        if wave <= before and now < at + moment_s:
            return False
        tree.passed_on = (wave, now)
        return True

    def time_passed(self, now: float) -> None:
        """Seek what is lost."""
        if self._seek_at is None or self._seek_at > now:
            return
        self._seek_at = None
        if not self._lost or "never-seeks" in self._around.plants:
            return
        wanted = []
        pause_s = self._around.options.lag_after_s * 2**DOUBLINGS_MAX
        for name in self._lost:
            tree = self._trees[name]
            wanted.append((name, tree.wave + 1))
            tree.passed_on = (tree.wave + 1, now)
            doublings = min(tree.searches, DOUBLINGS_MAX)
            tree.searches += 1
            pause_s = min(pause_s, self._around.options.lag_after_s * 2**doublings)
        self._seek_at = now + pause_s
        self._around.tell_all(Seek(self._around.name, wanted))

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return self._seek_at
