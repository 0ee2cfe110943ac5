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
4. Two neighbours that meet tell each other all routes they have, and ask each other what they were
   asked and could not answer.
5. A broker that has restarted forgot where it stood, and may stand farther than before; its former
   neighbours dropped it as a parent when its links broke, so there is no loop either. But distances
   may grow so, time and again. A way with more hops than there are brokers is none: it is sought.
6. A root that begins a new life has new trees; those of its former lives are forgotten.
7. The first tree of an edge is always there: messages to the edge follow it. Further ones offer
   other ways, and are there as long as the edition of advertisements that a broker knows names
   them (see `advertisements`). It forgets a tree that is not named but for the wave it stood at:
   should the tree begin again, its waves go on from there, and no earlier one is taken. To forget
   is so never to get farther (rule 1). It takes no wave of a tree that is not named, unless it
   knows nothing of what its root advertises in this life; and seeks a tree that is named if no
   wave of it comes.

Why it is enough to seek seldom, and to pay next to nothing for a root that is gone for good: a
search goes over all links that are up, and links lose nothing but when they break. So one that was
not answered met broken links wherever the way goes on. When such a link comes up, whoever passed
the search on, or began it, asks over that link (rule 4), even if the neighbour there has a way for
itself: others behind it seek a later wave. A broker between them that has restarted since learns
the routes then and tells them; who sought a later wave in vain, and takes a route of the one at
which it stood, asks there for the later one, by which all others see that the root is there again;
and who has no way, and hears of one that is too far to be taken, seeks again soon. Repetitions are
for what nobody thought of.

State: volatile; learned again from the neighbours.

Prior art: advertisement trees of PADRES (spec PADRES section 2). Feasible successors and sequence
numbers as in DUAL (Garcia-Luna-Aceves 1993) and Babel (RFC 8966).
"""

from collections.abc import Mapping

from anabranch.core.routing.mesh.shared import DISTANCE_MAX, MeshState
from anabranch.model.errors import RemoteError
from anabranch.model.mesh_frames import Route, Routes, Seek, TreeId

# Standing: where a broker is in one tree, and where its neighbours say that they are.
#
# A broker stands at a wave and a distance; who is nearer, and why that makes no loop, is said in
# `trees`, which changes all of this.
#
# State: volatile; learned again from the neighbours.


class TreePosition:
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


#: The pause between two searches grows to two to this power of the first one.
DOUBLINGS_MAX = 10
#: Part of the first timeout within which a search is not passed on again.
_MOMENT = 0.2
#: The last wave of a tree. Waves count up by one, so no tree gets there unless somebody lies. A
#: root that was lied to up to here sends out no later one; its next life has trees of its own.
WAVE_MAX = 1 << 60


class Trees:
    """All trees that one broker knows. See the rules at the top of this module."""

    def __init__(self, around: MeshState, life: int) -> None:
        self._around = around
        self._life = life
        self._trees: dict[TreeId, TreePosition] = {}
        #: Root → its newest life that was heard of.
        self.lives: dict[str, int] = {}
        #: Trees whose parent may have changed since somebody looked.
        self.changed: dict[TreeId, None] = {}
        #: Edges to which there is another way since somebody looked, or a later wave of theirs.
        self.reached: dict[str, None] = {}
        #: Root → its life and the trees that its advertisements name, as far as they are known.
        self._named: dict[str, tuple[int, frozenset[int]]] = {}
        #: Forgotten trees → the last wave that counts no more (rule 7).
        self._ended: dict[TreeId, int] = {}
        #: Trees without a way → when to seek one.
        self._lost: dict[TreeId, float] = {}
        #: The first of these, or earlier.
        self._seek_at: float | None = None
        #: Edge → neighbours that are nearer to it, as far as somebody asked.
        self._near: dict[str, dict[str, int]] = {}

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

    def near(self, edge: str) -> Mapping[str, int]:
        """The neighbours that are nearer to an edge than this broker, by its first tree and the
        last wave, and how far they are. None of them has its way over this broker."""
        found = self._near.get(edge)
        if found is None:
            tree = self._trees.get(TreeId(edge, self.lives.get(edge, 0), 0))
            self._near[edge] = found = {} if tree is None else tree.near()
        return found

    def lost(self) -> list[TreeId]:
        """Trees without a way to their root."""
        return list(self._lost)

    def stands(self) -> dict[TreeId, tuple[int, int, str | None]]:
        """Tree → wave, distance and parent; for whoever checks it."""
        return {name: (t.wave, t.distance, t.parent) for name, t in self._trees.items()}

    def wave(self, tree: TreeId) -> int:
        """The wave that was taken last."""
        found = self._trees.get(tree)
        return 0 if found is None else found.wave

    def is_over(self, tree: TreeId) -> bool:
        """Whether a tree is forgotten (rules 6 and 7)."""
        return tree.life < self.lives.get(tree.origin, 0) or not self._is_named(tree)

    def _is_named(self, tree: TreeId) -> bool:
        """Whether a tree is in use, or may be for all that is known."""
        life, numbers = self._named.get(tree.origin, (0, frozenset()))
        return not tree.number or tree.life != life or tree.number in numbers

    # -- beginning and end ------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """This broker is the root of a tree with this number, from now on."""
        name = TreeId(self._around.name, self._life, number)
        if name not in self._trees:
            self.lives[self._around.name] = self._life
            wave = min(self._ended.pop(name, 0) + 1, WAVE_MAX)
            self._trees[name] = tree = TreePosition(wave, 0, None)
            tree.is_root = True
            self._around.tell_all(Routes([Route(name, tree.wave, 0)]))

    def named(self, now: float, origin: str, life: int, numbers: frozenset[int]) -> None:
        """The newest advertisements of an origin name these trees, and no others (rule 7)."""
        if not self.hear_life(origin, life):
            return
        self._named[origin] = (life, numbers)
        for number in range(1, self._around.options.trees_max + 1):
            name = TreeId(origin, life, number)
            tree = self._trees.get(name)
            if number in numbers and tree is None:
                self._expect(now, name)
            elif number not in numbers and tree is not None:
                self._forget(name)
                self._ended[name] = tree.wave

    def _expect(self, now: float, name: TreeId) -> None:
        """A tree is named that is not known: begin it, or wait for its first wave."""
        if name.origin == self._around.name:
            self.begin(name.number)
            return
        # Nearer than distance 0 is a later wave only.
        self._trees[name] = TreePosition(self._ended.pop(name, 0), 0, None)
        self._seek_in(now, name, self._around.options.lag_after_s)

    def _forget(self, name: TreeId) -> None:
        del self._trees[name]
        self._near.pop(name.origin, None)
        self._lost.pop(name, None)
        self.changed[name] = None

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> None:
        """A neighbour is there (rule 4). Perhaps it leads to what was sought in vain."""
        for name in self._lost:
            self._trees[name].searches = 0
            self._seek_in(now, name, 0.0)
        routes = [
            Route(name, tree.wave, tree.distance)
            for name, tree in self._trees.items()
            if tree.is_reached
        ]
        if routes:
            self._around.send(peer, Routes(routes))
        asked = [
            (name, tree.passed_on[0])
            for name, tree in self._trees.items()
            if tree.passed_on[0] > tree.wave
        ]
        if asked:
            self._around.send(peer, Seek(self._around.name, asked))

    def link_down(self, now: float, peer: str) -> None:
        """A neighbour is gone (rule 3)."""
        self._near.clear()
        for name, tree in self._trees.items():
            tree.heard.pop(peer, None)
            if tree.parent == peer:
                self._replace_parent(now, name, tree)

    def _replace_parent(self, now: float, name: TreeId, tree: TreePosition) -> None:
        self.changed[name] = None
        tree.parent = tree.nearest()
        if tree.parent is None:
            self._lose(now, name, tree)

    def _lose(self, now: float, name: TreeId, tree: TreePosition) -> None:
        """There is no way (rules 3 and 5)."""
        if tree.parent is not None:
            tree.parent = None
            self.changed[name] = None
        if name not in self._lost:
            tree.searches = 0
            self._seek_in(now, name, 0.0)

    # -- waves ------------------------------------------------------------------------------------

    def receive(self, now: float, peer: str, frame: Routes) -> None:
        """A neighbour tells its routes."""
        for route in frame.routes:
            self._check(peer, route)
        news = []
        wanted = []
        for route in frame.routes:
            was_lost = route.tree in self._lost
            if self._learn(now, peer, route):
                tree = self._trees[route.tree]
                news.append(Route(route.tree, tree.wave, tree.distance))
                if was_lost and tree.passed_on[0] > tree.wave:
                    wanted.append((route.tree, tree.passed_on[0]))
        if news:
            self._around.tell_all(Routes(news), but=peer)
        if wanted:
            self._around.send(peer, Seek(self._around.name, wanted))

    def _check(self, peer: str, route: Route) -> None:
        name = route.tree
        self._around.check_edge(peer, name.origin)
        if name.number > self._around.options.trees_max:
            raise RemoteError(f"{peer!r} tells of tree {name.number} of {name.origin!r}")
        if route.wave > WAVE_MAX:
            # Refused where it comes in: whoever passed it on, or sought the next one, would be
            # taken for the liar.
            raise RemoteError(f"{peer!r} tells of wave {route.wave} of a tree of {name.origin!r}")
        if name.origin == self._around.name and name.life >= self._life:
            is_own = name in self._trees or name in self._ended
            if not is_own:
                raise RemoteError(f"{peer!r} tells of a wave that this broker never sent out")

    def _learn(self, now: float, peer: str, route: Route) -> bool:
        """Take a route in; True if it is to be told onward."""
        name = route.tree
        if name.origin == self._around.name:
            self._outdo(route)
            return False
        if not self.hear_life(name.origin, name.life) or not self._is_named(name):
            return False
        tree = self._trees.get(name)
        if tree is None:
            self._trees[name] = tree = TreePosition(0, DISTANCE_MAX, None)
        tree.heard[peer] = (route.wave, route.distance)
        if not name.number:
            self._near.pop(name.origin, None)
        is_shorter = route.wave == tree.wave and route.distance + 1 < tree.distance
        if route.wave > tree.wave:
            tree.wave, tree.distance = route.wave, DISTANCE_MAX
            if name.number:
                # Whoever forgot the tree in between has forgotten what is behind whom, too.
                self.changed[name] = None
        elif not is_shorter and (tree.parent is not None or tree.nearest() != peer):
            if name in self._lost:
                self._hope(now, name, tree)
            return False
        if route.distance >= len(self._around.brokers):
            self._lose(now, name, tree)
            return False
        tree.distance = min(tree.distance, route.distance + 1)
        if tree.parent != peer:
            tree.parent = peer
            self.changed[name] = None
        self._lost.pop(name, None)
        if not name.number:
            self.reached[name.origin] = None
        return True

    def _outdo(self, route: Route) -> None:
        """Somebody tells of a later wave than there was: send one out that is later still."""
        own = self._trees.get(route.tree)
        if route.tree.life != self._life:
            return
        if own is None:
            self._ended[route.tree] = max(route.wave, self._ended.get(route.tree, 0))
        elif route.wave > own.wave:
            own.wave = min(route.wave + 1, WAVE_MAX)
            self._around.tell_all(Routes([Route(route.tree, own.wave, 0)]))

    def hear_life(self, origin: str, life: int) -> bool:
        """An origin is said to have this life; False if it has a later one (rule 6)."""
        known = self.lives.get(origin, 0)
        if life > known:
            self.lives[origin] = life
            for name in [name for name in self._trees if name.origin == origin]:
                self._forget(name)
            for name in [name for name in self._ended if name.origin == origin]:
                del self._ended[name]
            # Edges may have joined those, too, of which no wave has come here yet.
            for number in range(self._around.options.trees_max + 1):
                self.changed[TreeId(origin, known, number)] = None
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
                tree.wave = min(tree.wave + 1, WAVE_MAX)
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

    def _seek_in(self, now: float, name: TreeId, after_s: float) -> None:
        """There is no way to a root: seek one then."""
        self._lost[name] = due = now + after_s
        self._seek_at = due if self._seek_at is None else min(due, self._seek_at)

    def _hope(self, now: float, name: TreeId, tree: TreePosition) -> None:
        """A neighbour has a way that is too far to be taken: it is worth seeking another wave."""
        tree.searches = 0
        due = max(now, tree.passed_on[1] + self._around.options.lag_after_s)
        if due < self._lost[name]:
            self._seek_in(now, name, due - now)

    def _is_news(self, now: float, tree: TreePosition, wave: int) -> bool:
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
        wanted = []
        for name, due in self._lost.items():
            if due > now:
                continue
            tree = self._trees[name]
            wanted.append((name, tree.wave + 1))
            tree.passed_on = (tree.wave + 1, now)
            doublings = min(tree.searches, DOUBLINGS_MAX)
            tree.searches += 1
            self._lost[name] = now + self._around.options.lag_after_s * 2**doublings
        self._seek_at = min(self._lost.values(), default=None)
        if wanted:
            self._around.tell_all(Seek(self._around.name, wanted))

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return self._seek_at
