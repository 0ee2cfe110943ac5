"""Trees: for every root, the neighbour on the path towards it.

Every edge is the root of trees. It floods *waves*: a broker adopts the neighbour from which it
receives a wave first as its *parent*, is one hop farther from the root than the parent announced,
and announces its own route to all other neighbours. Later announcements of the same wave are
recorded but not forwarded, unless they shorten the path, so that a link that came up late is used.
So a wave crosses each link once per direction, rarely more, and its tree is the fastest one at that
time or a shorter one. Rules:

1. A broker's position is (wave, distance). *Nearer* means a later wave, or the same wave and a
   smaller distance. A position never gets farther.
2. A parent must be nearer, by its own announcement, than the broker's position. Since positions
   never get farther, every parent is nearer along every path at every moment: there is no loop,
   even if announcements are lost or late.
3. A parent whose link breaks is replaced by a nearer neighbour. If there is none, the broker has no
   path, announces nothing, and *searches*: it asks all brokers for a later wave. The root floods
   one when the search reaches it. The broker repeats the search with exponential backoff until a
   wave arrives.
4. Two neighbours that connect send each other all their routes, and the searches that they passed
   on without an answer.
5. A restarted broker has lost its position and may become farther than before. Its former
   neighbours dropped it as a parent when its links broke, so there is no loop either. But distances
   may grow that way repeatedly. A path with more hops than there are brokers is not a path: the
   broker searches.
6. A root that starts a new life has new trees; those of its former lives are dropped.
7. The first tree of an edge always exists: messages to the edge follow it. Further trees offer
   other paths, and exist as long as the edition of advertisements that a broker has names them (see
   `advertisements`). When a tree is no longer named, the broker drops everything except its last
   wave: if the tree starts again, its waves continue from there, and no earlier one is accepted. So
   dropping a tree never makes a position farther (rule 1). A broker accepts no wave of an unnamed
   tree unless it has no advertisements of the root's current life, and it searches for a named tree
   if no wave of it arrives.

Why rare searches suffice, at almost no cost for a root that is gone for good: a search crosses all
links that are up, and links lose frames only when they break. So an unanswered search met broken
links on every continuation of the path. When such a link comes up, the brokers that started or
forwarded the search repeat it over that link (rule 4), even if the neighbour there has a path of
its own, since others behind it search for a later wave. A broker in between that has restarted
learns the routes then and forwards them. A broker that searched for a later wave in vain, and
adopts a route of its current wave, asks the sender for the later one, by which all others see that
the root is back. A broker without a path that receives a route that is too far to adopt searches
again soon. Periodic repetition covers cases that this argument misses.

State: volatile; learned again from the neighbours.

Prior art: advertisement trees of PADRES (spec PADRES section 2). Feasible successors and sequence
numbers as in DUAL (Garcia-Luna-Aceves 1993) and Babel (RFC 8966).
"""

from collections.abc import Mapping

from anabranch.core.routing.mesh.shared import DISTANCE_MAX, MeshState
from anabranch.model.errors import RemoteError
from anabranch.model.mesh_frames import Route, Routes, Seek, TreeId


class TreePosition:
    """A broker's position in one tree, and the positions that its neighbours announced.

    `Trees` maintains it; see rules 1 and 2 there."""

    __slots__ = ("distance", "heard", "is_root", "last_search", "parent", "searches", "wave")

    def __init__(self, wave: int, distance: int, parent: str | None) -> None:
        self.wave = wave
        self.distance = distance
        #: None if there is no path or this broker is the root.
        self.parent = parent
        self.is_root = False
        #: Neighbour → the wave and distance that it announced last.
        self.heard: dict[str, tuple[int, int]] = {}
        #: The search that was started or forwarded last: its wave and time.
        self.last_search: tuple[int, float] = (0, 0.0)
        #: Searches since the path was lost.
        self.searches = 0

    @property
    def is_reached(self) -> bool:
        """Whether there is a path to the root."""
        return self.parent is not None or self.is_root

    def nearest(self) -> str | None:
        """The best neighbour that is nearer (rule 2 of `trees`)."""
        nearer = [
            (-wave, distance, peer)
            for peer, (wave, distance) in self.heard.items()
            if wave > self.wave or (wave == self.wave and distance < self.distance)
        ]
        return min(nearer)[2] if nearer else None

    def nearer_neighbours(self) -> dict[str, int]:
        """Neighbours that are nearer to the root by the same wave, with their distances."""
        return {
            peer: distance
            for peer, (wave, distance) in self.heard.items()
            if wave == self.wave and distance < self.distance
        }


#: The backoff between searches grows up to two to this power times the first one.
DOUBLINGS_MAX = 10
#: Window, as a factor of `lag_after_s`, in which a duplicate search is not forwarded.
_DUPLICATE_WINDOW = 0.2
#: The last wave of a tree. Waves count up by one, so no tree reaches it without a faulty broker. A
#: root that was driven up to here floods no later wave; its next life has new trees.
WAVE_MAX = 1 << 60


class Trees:
    """All trees that one broker has learned. See the rules at the top of this module."""

    def __init__(self, shared: MeshState, life: int) -> None:
        self._shared = shared
        self._life = life
        self._trees: dict[TreeId, TreePosition] = {}
        #: Root → its newest known life.
        self.lives: dict[str, int] = {}
        #: Trees whose parent may have changed.
        self._changed: dict[TreeId, None] = {}
        #: Edges with a new path or a later wave.
        self._reached: dict[str, None] = {}
        #: Root → its life and the trees that its known advertisements name.
        self._named: dict[str, tuple[int, frozenset[int]]] = {}
        #: Dropped trees → their last wave (rule 7).
        self._ended: dict[TreeId, int] = {}
        #: Trees without a path → when to search.
        self._lost: dict[TreeId, float] = {}
        #: The earliest of these times, or earlier.
        self._seek_at: float | None = None
        #: Edge → its `near`, cached.
        self._near: dict[str, dict[str, int]] = {}

    # -- queries ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._trees)

    def __contains__(self, tree: TreeId) -> bool:
        return tree in self._trees

    def parent(self, tree: TreeId) -> str | None:
        """The parent in a tree; None if there is no path or this broker is the root."""
        found = self._trees.get(tree)
        return None if found is None else found.parent

    def next_hop(self, edge: str) -> str | None:
        """The next hop to an edge; None if there is no path."""
        life = self.lives.get(edge)
        return None if life is None else self.parent(TreeId(edge, life, 0))

    def distance_to(self, edge: str) -> int | None:
        """Hops to an edge; None if there is no path."""
        life = self.lives.get(edge)
        found = None if life is None else self._trees.get(TreeId(edge, life, 0))
        return found.distance if found is not None and found.is_reached else None

    def nearer_neighbours(self, edge: str) -> Mapping[str, int]:
        """The neighbours that are nearer to an edge than this broker, by its first tree and last
        wave, with their distances. None of them has its path over this broker."""
        found = self._near.get(edge)
        if found is None:
            tree = self._trees.get(TreeId(edge, self.lives.get(edge, 0), 0))
            self._near[edge] = found = {} if tree is None else tree.nearer_neighbours()
        return found

    def lost(self) -> list[TreeId]:
        return list(self._lost)

    def positions(self) -> dict[TreeId, tuple[int, int, str | None]]:
        """Tree → wave, distance and parent; for checks."""
        return {name: (t.wave, t.distance, t.parent) for name, t in self._trees.items()}

    def wave(self, tree: TreeId) -> int:
        found = self._trees.get(tree)
        return 0 if found is None else found.wave

    def has_ended(self, tree: TreeId) -> bool:
        """Whether a tree has been dropped (rules 6 and 7)."""
        return tree.life < self.lives.get(tree.origin, 0) or not self._is_named(tree)

    def _is_named(self, tree: TreeId) -> bool:
        """Whether a tree is in use, or may be as far as this broker has learned."""
        life, numbers = self._named.get(tree.origin, (0, frozenset()))
        return not tree.number or tree.life != life or tree.number in numbers

    def take_changed(self) -> dict[TreeId, None]:
        """Trees whose parent may have changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    def take_reached(self) -> dict[str, None]:
        """Edges with a new path or a later wave since the last call."""
        reached, self._reached = self._reached, {}
        return reached

    # -- lifecycle --------------------------------------------------------------------------------

    def start_tree(self, number: int) -> None:
        """Start a tree with this broker as its root."""
        name = TreeId(self._shared.name, self._life, number)
        if name not in self._trees:
            self.lives[self._shared.name] = self._life
            wave = min(self._ended.pop(name, 0) + 1, WAVE_MAX)
            self._trees[name] = tree = TreePosition(wave, 0, None)
            tree.is_root = True
            self._shared.send_all(Routes([Route(name, tree.wave, 0)]))

    def set_named(self, now: float, origin: str, life: int, numbers: frozenset[int]) -> None:
        """The newest advertisements of an origin name exactly these trees (rule 7)."""
        if not self.learn_life(origin, life):
            return
        self._named[origin] = (life, numbers)
        for number in range(1, self._shared.options.trees_max + 1):
            name = TreeId(origin, life, number)
            tree = self._trees.get(name)
            if number in numbers and tree is None:
                self._expect(now, name)
            elif number not in numbers and tree is not None:
                self._forget(name)
                self._ended[name] = tree.wave

    def _expect(self, now: float, name: TreeId) -> None:
        """Start an unknown tree that is named, or wait for its first wave."""
        if name.origin == self._shared.name:
            self.start_tree(name.number)
            return
        # With distance 0, only a later wave is nearer.
        self._trees[name] = TreePosition(self._ended.pop(name, 0), 0, None)
        self._seek_in(now, name, self._shared.options.lag_after_s)

    def _forget(self, name: TreeId) -> None:
        del self._trees[name]
        self._near.pop(name.origin, None)
        self._lost.pop(name, None)
        self._changed[name] = None

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> None:
        """Exchange routes and open searches with a new neighbour (rule 4)."""
        for name in self._lost:
            self._trees[name].searches = 0
            self._seek_in(now, name, 0.0)
        routes = [
            Route(name, tree.wave, tree.distance)
            for name, tree in self._trees.items()
            if tree.is_reached
        ]
        if routes:
            self._shared.send(peer, Routes(routes))
        asked = [
            (name, tree.last_search[0])
            for name, tree in self._trees.items()
            if tree.last_search[0] > tree.wave
        ]
        if asked:
            self._shared.send(peer, Seek(self._shared.name, asked))

    def link_down(self, now: float, peer: str) -> None:
        """Replace a disconnected parent (rule 3)."""
        self._near.clear()
        for name, tree in self._trees.items():
            tree.heard.pop(peer, None)
            if tree.parent == peer:
                self._replace_parent(now, name, tree)

    def _replace_parent(self, now: float, name: TreeId, tree: TreePosition) -> None:
        self._changed[name] = None
        tree.parent = tree.nearest()
        if tree.parent is None:
            self._lose(now, name, tree)

    def _lose(self, now: float, name: TreeId, tree: TreePosition) -> None:
        """Handle the loss of the path (rules 3 and 5)."""
        if tree.parent is not None:
            tree.parent = None
            self._changed[name] = None
        if name not in self._lost:
            tree.searches = 0
            self._seek_in(now, name, 0.0)

    # -- waves ------------------------------------------------------------------------------------

    def receive(self, now: float, peer: str, frame: Routes) -> None:
        for route in frame.routes:
            self._check(peer, route)
        news = []
        wanted = []
        for route in frame.routes:
            was_lost = route.tree in self._lost
            if self._learn(now, peer, route):
                tree = self._trees[route.tree]
                news.append(Route(route.tree, tree.wave, tree.distance))
                if was_lost and tree.last_search[0] > tree.wave:
                    wanted.append((route.tree, tree.last_search[0]))
        if news:
            self._shared.send_all(Routes(news), but=peer)
        if wanted:
            self._shared.send(peer, Seek(self._shared.name, wanted))

    def _check(self, peer: str, route: Route) -> None:
        name = route.tree
        self._shared.check_edge(peer, name.origin)
        if name.number > self._shared.options.trees_max:
            raise RemoteError(f"{peer!r} announces unknown tree {name.number} of {name.origin!r}")
        if route.wave > WAVE_MAX:
            # Rejected on entry: otherwise a broker that forwards it, or searches for the next wave,
            # would be blamed.
            raise RemoteError(f"{peer!r} announces wave {route.wave} of a tree of {name.origin!r}")
        if name.origin == self._shared.name and name.life >= self._life:
            is_own = name in self._trees or name in self._ended
            if not is_own:
                raise RemoteError(f"{peer!r} announces a wave that this broker never sent")

    def _learn(self, now: float, peer: str, route: Route) -> bool:
        """Learn a route; returns True if it has to be announced to the other neighbours."""
        name = route.tree
        if name.origin == self._shared.name:
            self._supersede(route)
            return False
        if not self.learn_life(name.origin, name.life) or not self._is_named(name):
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
                # Brokers that dropped the tree in between have dropped its branches too.
                self._changed[name] = None
        elif not is_shorter and (tree.parent is not None or tree.nearest() != peer):
            if name in self._lost:
                self._search_sooner(now, name, tree)
            return False
        if route.distance >= len(self._shared.brokers):
            self._lose(now, name, tree)
            return False
        tree.distance = min(tree.distance, route.distance + 1)
        if tree.parent != peer:
            tree.parent = peer
            self._changed[name] = None
        self._lost.pop(name, None)
        if not name.number:
            self._reached[name.origin] = None
        return True

    def _supersede(self, route: Route) -> None:
        """A neighbour announces a later wave than this root has sent: flood an even later one."""
        own = self._trees.get(route.tree)
        if route.tree.life != self._life:
            return
        if own is None:
            self._ended[route.tree] = max(route.wave, self._ended.get(route.tree, 0))
        elif route.wave > own.wave:
            own.wave = min(route.wave + 1, WAVE_MAX)
            self._shared.send_all(Routes([Route(route.tree, own.wave, 0)]))

    def learn_life(self, origin: str, life: int) -> bool:
        """Record an origin's life; returns False if a later one is known (rule 6)."""
        known = self.lives.get(origin, 0)
        if life > known:
            self.lives[origin] = life
            for name in [name for name in self._trees if name.origin == origin]:
                self._forget(name)
            for name in [name for name in self._ended if name.origin == origin]:
                del self._ended[name]
            # Edges may have joined trees, too, whose waves have not arrived here yet.
            for number in range(self._shared.options.trees_max + 1):
                self._changed[TreeId(origin, known, number)] = None
        return life >= known

    # -- searches ---------------------------------------------------------------------------------

    def receive_search(self, now: float, peer: str, frame: Seek) -> None:
        """Handle a search for some roots."""
        if frame.source == self._shared.name:
            return
        self._shared.check_edge(peer, next((t.origin for t, _ in frame.wanted), self._any_edge()))
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
            elif self._is_new_search(now, tree, wave):
                onward.append((name, wave))
        if waves:
            self._shared.send_all(Routes(waves))
        if answers:
            self._shared.send(peer, Routes(answers))
        if onward:
            self._shared.send_all(Seek(frame.source, onward), but=peer)

    def _any_edge(self) -> str:
        return next(iter(self._shared.edges))

    def _seek_in(self, now: float, name: TreeId, after_s: float) -> None:
        """Schedule a search for a path to a root."""
        self._lost[name] = due = now + after_s
        self._seek_at = due if self._seek_at is None else min(due, self._seek_at)

    def _search_sooner(self, now: float, name: TreeId, tree: TreePosition) -> None:
        """A neighbour has a path that is too far to adopt: searching for a later wave may help."""
        tree.searches = 0
        due = max(now, tree.last_search[1] + self._shared.options.lag_after_s)
        if due < self._lost[name]:
            self._seek_in(now, name, due - now)

    def _is_new_search(self, now: float, tree: TreePosition, wave: int) -> bool:
        before, at = tree.last_search
        window_s = _DUPLICATE_WINDOW * self._shared.options.lag_after_s
        if wave <= before and now < at + window_s:
            return False
        tree.last_search = (wave, now)
        return True

    def time_passed(self, now: float) -> None:
        """Search for lost roots when due."""
        if self._seek_at is None or self._seek_at > now:
            return
        wanted = []
        for name, due in self._lost.items():
            if due > now:
                continue
            tree = self._trees[name]
            wanted.append((name, tree.wave + 1))
            tree.last_search = (tree.wave + 1, now)
            doublings = min(tree.searches, DOUBLINGS_MAX)
            tree.searches += 1
            self._lost[name] = now + self._shared.options.lag_after_s * 2**doublings
        self._seek_at = min(self._lost.values(), default=None)
        if wanted:
            self._shared.send_all(Seek(self._shared.name, wanted))

    def next_deadline(self) -> float | None:
        return self._seek_at
