"""A model of replicated streams (ADR 0030, 0031): copies, writers and their lives.

One origin with two processes that may run at the same time, each with a disk of its own, one to
three keepers, and a closer: another broker that closes the stream while its origin is away.
`Model.steps` says what can happen in a state, `Model.check` whether a promise is broken,
`Model.check_progress` whether the stream can go on; `life_protocol` searches all states.
The model shares no code with the product.

What the model leaves out, and why that loses no story:

- A message is never removed: `Life.log` is all that a life's writer has sent, and a copy may take
  any of it at any time or never. This covers loss, repetition, delay and reordering.
- A writer acts on any set of answers that suffices, so an answer may be late or lost.
- The processes of the origin do not reach each other's disk; a keeper's old disk is gone for all.
  A closer reaches keepers only. It needs no copy of its own to confirm, so it may do more than ADR
  0031 allows.
- Acknowledgements are counted at once. A writer that counts them later confirms less, later.
- A process that stops is one that does nothing more. What it had not synced is in no copy: its own
  log is a copy like the others, which takes records from its writer.
- A record is named by its life; the first record of a life is its life record. The life is also the
  content, since each writer appends its own.

Rules as the model has them, where ADR 0030 leaves room or where the model found a hole (`Rules`
switches each back to the reading that fails):

1. An answer names the sets of all life records from the newest confirmed one on, not only of the
   newest: a set that was never confirmed must not hide the one before it.
2. A start needs max(q, min(w, n - x)) answers of every named set with n members, x of them lost.
3. A life record needs min(w, n - x) acknowledgements of every named set. A lost member does not
   count as one that has acknowledged: its disk may be alive in an older process.
4. Sets before the newest life record that an answer knows to be confirmed are not asked.
5. While no answer knows of a confirmed tick, the stream is being founded: all brokers of the
   configured set must answer, and the life record must be acknowledged by all members that are
   not lost, of this set and of every named set. If no answer names a set, all brokers of the
   network must answer: the network file may have changed since.
6. The writer's own copy is in every write quorum.
7. With `confirm` 1 a writer may start alone if its own copy is a member of its newest set.
8. A life names the process that has it, since two processes may be of one broker.
9. A closer needs the answers that a writer needs, all of them from keepers, and one that knows of a
   confirmed tick. It takes the newest set as it is, writes its life record and nothing else, and
   says that the stream is closed when that record is confirmed.

Prior art: Raft (Ongaro, Ousterhout 2014), whose figure 8 is `unsealed_ticks` here.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from typing import NamedTuple, TypeVar

T = TypeVar("T")

Log = tuple[int, ...]
Members = tuple[int, ...]
#: The sets that a life proposes or that an answer names: (life, members) in order of lives.
Sets = tuple[tuple[int, Members], ...]
Action = tuple[str, int, int]

#: The copy of the origin's first process, and of its second; keepers follow.
FIRST_KEEPER = 2
#: The closer's place among the processes. It has no copy.
CLOSER = 2
GENERATIONS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """Switches: mistakes in an implementation, then readings of the ADR that the model refutes."""

    #: A promise is forgotten in a power cut after its answer has left.
    unsynced_promise: bool = False
    #: w is one less than it should be.
    confirm_too_few: bool = False
    #: A start is content with q - 1 answers.
    start_too_few: bool = False
    #: The longest log is adopted, not the one with the highest (life, tick).
    adopt_longest: bool = False
    #: Lives 2 and 3 are equal: a life is a number and a broker, and both processes are of one.
    equal_lives: bool = False
    #: A lost copy returns under its old identity.
    identity_returns: bool = False
    #: Acknowledgements of copies that are no members count.
    learner_counts: bool = False
    #: Ticks of older lives are confirmed before the life record (Raft's figure 8).
    unsealed_ticks: bool = False
    #: A set is changed without the members of the old one.
    old_set_ignored: bool = False
    #: A repetition of an old record cuts off what follows it.
    repetition_cuts: bool = False
    #: A copy serves what it has.
    serve_unconfirmed: bool = False
    #: A copy that has promised a life takes records of lower ones.
    no_fencing: bool = False

    #: An answer names the set of the newest life record only.
    only_newest_set: bool = False
    #: An answer also names the proposal of the highest life promised before.
    last_proposal: bool = False
    #: A lost member counts as one that has acknowledged the life record: w - x, not min(w, n - x).
    lost_acknowledge: bool = False
    #: A start needs w answers even if fewer members are left.
    lost_must_answer: bool = False
    #: Every set that an answer names is asked, even if a newer one is known to be confirmed.
    all_older_sets: bool = False
    #: The first life record is confirmed by w members, not by all.
    founding_by_quorum: bool = False
    #: A stream is founded if the brokers of the configured set do not know it, whatever others do.
    founding_asks_configured: bool = False
    #: A tick is confirmed without the writer's own copy.
    own_copy_optional: bool = False
    #: A closer says that the stream is closed before its life record is confirmed.
    closed_by_promises: bool = False


SOUND = Rules()
#: The rules as the ADR first had them.
AS_WRITTEN = Rules(
    only_newest_set=True,
    last_proposal=True,
    lost_acknowledge=True,
    lost_must_answer=True,
    all_older_sets=True,
    founding_by_quorum=True,
    founding_asks_configured=True,
    own_copy_optional=True,
)


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """What is searched."""

    copies: int = 3
    confirm: int = 2
    #: The highest life; life 1 has begun already if the stream is founded.
    lives: int = 3
    #: Ticks that a writer appends after its life record, by life; the last holds for higher ones.
    ticks: tuple[int, ...] = (0,)
    losses: int = 0
    rollbacks: int = 0
    #: A second process of the origin, without the first one's disk, may start at any time.
    second: bool = True
    #: Another broker may close the stream at any time.
    closer: bool = False
    #: An origin cuts off its records that are not adopted; otherwise its copy begins anew.
    cuts: bool = False
    founded: bool = True
    #: The configured set, per version of the network file: sites of keepers.
    files: tuple[tuple[int, ...], ...] = ()
    rules: Rules = SOUND

    def keepers(self, file: int) -> tuple[int, ...]:
        if self.files:
            return self.files[file]
        return tuple(range(FIRST_KEEPER, FIRST_KEEPER + self.copies - 1))

    def sites(self) -> int:
        return max(max(self.keepers(file), default=1) for file in range(len(self.files) or 1)) + 1


class Copy(NamedTuple):
    """A log on a disk. Its identity is its site and how many disks were lost there before."""

    generation: int
    promised: int
    log: Log
    #: How many ticks it knows to be confirmed.
    confirmed: int
    proposal: tuple[int, Members] | None = None
    synced_promise: int = 0


class Process(NamedTuple):
    """A writer: what it has in memory."""

    life: int
    file: int
    begun: bool
    #: By site: the copy as it was when it promised, with its proposal of before.
    answers: tuple[Copy | None, ...]
    #: By identity: the last tick acknowledged.
    acknowledged: tuple[tuple[int, int], ...]


class Life(NamedTuple):
    """What a life's writer has sent, which may arrive at any time."""

    members: Members
    #: Sets of other lives whose members must acknowledge the life record, and whether all must.
    older: Sets
    founding: bool
    first: int
    log: Log
    confirmed: int
    #: Whether its writer is the closer.
    closing: bool = False


class State(NamedTuple):
    copies: tuple[Copy, ...]
    processes: tuple[Process, ...]
    lives: tuple[Life | None, ...]
    losses: int


NOBODY = Process(0, 0, False, (), ())


def identity(site: int, generation: int) -> int:
    return site * GENERATIONS + generation


def replace_at(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def name_of(site: int) -> str:
    names = ("the origin", "the second process")
    return names[site] if site < FIRST_KEEPER else f"keeper {site - FIRST_KEEPER + 1}"


def changed_files(copies: int) -> tuple[tuple[int, ...], ...]:
    """Two versions of a network file, the second with another last keeper."""
    keepers = tuple(range(FIRST_KEEPER, FIRST_KEEPER + copies - 1))
    return keepers, (*keepers[:-1], keepers[-1] + 1)


class BrokenPromiseError(Exception):
    """A claim of the ADR does not hold in a state."""


class Model:
    """The actions that are possible in a state, and what they lead to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules = world.rules
        self.sites = world.sites()
        self.writers = (0, 1) if world.second else (0,)
        self.processes = (*self.writers, CLOSER) if world.closer else self.writers

    # ------------------------------------------------------------------------- lives and logs

    def rank(self, life: int) -> int:
        """A life's place in the order. Two lives without the process in their name are equal."""
        return life // 2 + 1 if self.rules.equal_lives else life

    def same_length(self, one: Log, other: Log) -> int:
        """How many records two logs have in common, by name."""
        count = 0
        for ours, theirs in zip(one, other, strict=False):
            if ours != theirs and self.rank(ours) != self.rank(theirs):
                break
            count += 1
        return count

    def last(self, log: Log) -> tuple[int, int]:
        return (self.rank(log[-1]) if log else 0, len(log))

    # --------------------------------------------------------------------------------- start

    def initial(self) -> State:
        world = self.world
        keepers = world.keepers(0)
        copies = []
        for site in range(self.sites):
            member = world.founded and (site == 0 or site in keepers)
            copies.append(Copy(0, 1, (1,), 1, None, 1) if member else Copy(0, 0, (), 0))
        lives: list[Life | None] = [None] * (world.lives + 1)
        processes = [NOBODY, NOBODY, NOBODY]
        if world.founded:
            members = (identity(0, 0), *(identity(site, 0) for site in keepers))
            lives[1] = Life(members, (), False, 0, (1,), 1)
            processes[0] = Process(1, 0, True, (), tuple((member, 1) for member in members))
        return State(tuple(copies), tuple(processes), tuple(lives), 0)

    def asked(self, state: State, writer: int, life: int, file: int) -> State:
        """A process starts, or starts again: it asks all copies, its own first."""
        process = Process(life, file, False, (None,) * self.sites, ())
        state = state._replace(
            processes=replace_at(state.processes, writer, process),
            lives=replace_at(state.lives, life, Life((), (), False, 0, (), 0)),
        )
        return state if writer == CLOSER else self.promised(state, writer, life)

    def _reaches_site(self, process: int, site: int) -> bool:
        """Whether a process reaches a copy: its own one, and those of keepers."""
        return site >= FIRST_KEEPER or site == process

    def promised(self, state: State, site: int, life: int) -> State:
        """A copy promises a life and answers its writer."""
        copy = state.copies[site]
        proposal = None
        if self.rules.last_proposal:
            proposal = (life, self._proposal(state, life))
        synced = copy.synced_promise if self.rules.unsynced_promise else life
        now = copy._replace(promised=life, proposal=proposal, synced_promise=synced)
        processes = state.processes
        for writer in self.processes:
            process = processes[writer]
            reaches = self._reaches_site(writer, site)
            if process.life == life and not process.begun and reaches:
                answers = replace_at(process.answers, site, copy)
                processes = replace_at(processes, writer, process._replace(answers=answers))
        return state._replace(copies=replace_at(state.copies, site, now), processes=processes)

    def _proposal(self, state: State, life: int) -> Members:
        for writer in self.writers:
            process = state.processes[writer]
            if process.life == life:
                sites = (writer, *self.world.keepers(process.file))
                return tuple(identity(site, state.copies[site].generation) for site in sites)
        return ()

    # --------------------------------------------------------------------------------- begin

    def named_sets(self, state: State, answers: dict[int, Copy]) -> dict[int, Members]:
        """The sets that answers name, by their lives."""
        named: dict[int, Members] = {}
        newest = 0
        for copy in answers.values():
            lives = list(dict.fromkeys(copy.log))
            known = copy.log[copy.confirmed - 1] if copy.confirmed else 0
            newest = max(newest, known)
            if self.rules.only_newest_set:
                lives = lives[-1:]
            for life in lives:
                begun = state.lives[life]
                assert begun is not None
                if life >= known or self.rules.all_older_sets:
                    named[life] = begun.members
            if copy.proposal is not None and copy.proposal[1]:
                named.setdefault(*copy.proposal)
        if not self.rules.all_older_sets:
            named = {life: members for life, members in named.items() if life >= newest}
        return named

    def lost(
        self, state: State, writer: int, members: Members, answers: dict[int, Copy]
    ) -> set[int]:
        """Members that a writer knows to be lost: their broker has another identity now."""
        found = set()
        for member in members:
            site, generation = divmod(member, GENERATIONS)
            if site < FIRST_KEEPER:
                if writer == CLOSER:
                    # It is away; nothing is known about it.
                    continue
                if site != writer or state.copies[site].generation != generation:
                    found.add(member)
            elif site in answers and answers[site].generation != generation:
                found.add(member)
        return found

    def answers_suffice(
        self, state: State, writer: int, answers: dict[int, Copy], named: dict[int, Members]
    ) -> bool:
        rules, confirm = self.rules, self.world.confirm
        founding = not any(copy.confirmed for copy in answers.values())
        if rules.founding_by_quorum:
            founding = not named
        if founding and any(site not in answers for site in self._founders(state, writer, named)):
            return False
        if writer == CLOSER and (founding or not named):
            return False
        if confirm == 1 and named and writer != CLOSER:
            own = identity(writer, state.copies[writer].generation)
            newest = named[max(named)]
            if own in newest and set(answers) == {writer}:
                return True
        here = {identity(site, copy.generation) for site, copy in answers.items()}
        for members in named.values():
            gone = len(self.lost(state, writer, members, answers))
            count = len(members)
            needed = count - confirm + 1
            if rules.lost_must_answer:
                needed = max(needed, confirm)
            else:
                needed = max(needed, min(confirm, count - gone))
            if founding and not rules.founding_by_quorum:
                needed = max(needed, count - gone)
            if rules.start_too_few:
                needed = count - confirm
            if len(here & set(members)) < needed:
                return False
        return True

    def _founders(self, state: State, writer: int, named: dict[int, Members]) -> Iterable[int]:
        """The brokers that must answer while nobody knows of a confirmed tick."""
        if named or self.rules.founding_asks_configured:
            return self.world.keepers(state.processes[writer].file)
        return range(FIRST_KEEPER, self.sites)

    def begun(self, state: State, writer: int, sites: Iterable[int]) -> State | None:
        """A writer that acts on these answers adopts a log and appends its life record."""
        process = state.processes[writer]
        answers: dict[int, Copy] = {}
        for site in sites:
            answer = process.answers[site]
            assert answer is not None
            answers[site] = answer
        named = self.named_sets(state, answers)
        if not self.answers_suffice(state, writer, answers, named):
            return None
        adopted = self._adopted(answers, named)
        newest = named[max(named)] if named else ()
        if writer == CLOSER:
            return self._closing(state, process, adopted, named)
        own = state.copies[writer]
        member = identity(writer, own.generation)
        same = self.same_length(own.log, adopted)
        has_others = same < len(own.log)
        if has_others and member in newest and self.world.cuts:
            if own.confirmed > same:
                raise BrokenPromiseError("an origin cuts off a tick that it knows is confirmed")
            own = own._replace(log=own.log[:same])
        elif has_others or (own.log and member not in newest):
            own = own._replace(generation=own.generation + 1, log=(), confirmed=0)
        known = max((copy.confirmed for copy in answers.values()), default=0)
        members = (
            identity(writer, own.generation),
            *(
                self._member_at(state, site, newest, answers, adopted[:known])
                for site in self.world.keepers(process.file)
            ),
        )
        older: Sets = tuple(sorted((other, s) for other, s in named.items() if s != members))
        founding = not known and not self.rules.founding_by_quorum
        begun = Life(
            members,
            () if self.rules.old_set_ignored else older,
            founding,
            len(adopted),
            (*adopted, process.life),
            0,
        )
        process = Process(process.life, process.file, True, (), ())
        return state._replace(
            copies=replace_at(state.copies, writer, own),
            processes=replace_at(state.processes, writer, process),
            lives=replace_at(state.lives, process.life, begun),
        )

    def _closing(
        self, state: State, process: Process, adopted: Log, named: dict[int, Members]
    ) -> State:
        """The closer keeps the newest set, and will write its life record only."""
        members = named[max(named)]
        older: Sets = tuple(sorted((other, s) for other, s in named.items() if s != members))
        if self.rules.old_set_ignored:
            older = ()
        begun = Life(members, older, False, len(adopted), (*adopted, process.life), 0, True)
        if self.rules.closed_by_promises:
            begun = begun._replace(confirmed=len(begun.log))
        process = Process(process.life, process.file, True, (), ())
        return state._replace(
            processes=replace_at(state.processes, CLOSER, process),
            lives=replace_at(state.lives, process.life, begun),
        )

    def _adopted(self, answers: dict[int, Copy], named: dict[int, Members]) -> Log:
        """The log of the member with the highest (life, tick)."""
        candidates = [
            copy.log
            for site, copy in answers.items()
            if self._is_named(identity(site, copy.generation), named)
        ]
        key = self._length if self.rules.adopt_longest else self.last
        return max(candidates, key=key, default=())

    @staticmethod
    def _length(log: Log) -> tuple[int, int]:
        return len(log), 0

    @staticmethod
    def _is_named(member: int, named: dict[int, Members]) -> bool:
        return not named or any(member in members for members in named.values())

    def _member_at(
        self, state: State, site: int, newest: Members, answers: dict[int, Copy], confirmed: Log
    ) -> int:
        """Which identity at a site is in the new set: a learner only if it is complete."""
        old = [member for member in newest if member // GENERATIONS == site]
        if site not in answers:
            return old[0] if old else identity(site, state.copies[site].generation)
        copy = answers[site]
        current = identity(site, copy.generation)
        complete = self.same_length(copy.log, confirmed) == len(confirmed)
        if not old or current in old or complete:
            return current
        return old[0]

    # --------------------------------------------------------------------------------- write

    def appended(self, state: State, life: int) -> State:
        begun = state.lives[life]
        assert begun is not None
        begun = begun._replace(log=(*begun.log, life))
        return state._replace(lives=replace_at(state.lives, life, begun))

    def may_take(self, copy: Copy, life: int, begun: Life) -> bool:
        if not begun.log:
            return False
        if self.rank(copy.promised) != self.rank(life) and not (
            self.rules.no_fencing and copy.promised
        ):
            return False
        return self.same_length(copy.log, begun.log) < len(begun.log)

    def taken(self, state: State, site: int, life: int) -> State:
        """A copy takes the next record of a life, cuts off what differs, and syncs."""
        copy = state.copies[site]
        begun = state.lives[life]
        assert begun is not None
        at = self.same_length(copy.log, begun.log)
        if copy.confirmed > at:
            raise BrokenPromiseError("a copy is told to cut off a tick that it knows is confirmed")
        copy = copy._replace(
            log=(*copy.log[:at], *begun.log[at : at + 1]), synced_promise=copy.promised
        )
        return state._replace(copies=replace_at(state.copies, site, copy))

    def repeated(self, state: State, site: int, at: int) -> State:
        """Planted: a repetition of an old record cuts off what follows it."""
        copy = state.copies[site]
        copy = copy._replace(log=copy.log[: at + 1], confirmed=min(copy.confirmed, at + 1))
        return state._replace(copies=replace_at(state.copies, site, copy))

    # ---------------------------------------------------------------------------------- loss

    def disk_lost(self, state: State, site: int) -> State:
        generation = state.copies[site].generation + (not self.rules.identity_returns)
        processes = state.processes
        if site < FIRST_KEEPER:
            processes = replace_at(processes, site, NOBODY)
        return state._replace(
            copies=replace_at(state.copies, site, Copy(generation, 0, (), 0)),
            processes=processes,
            losses=state.losses + 1,
        )

    def rolled_back(self, state: State, site: int) -> State:
        copy = state.copies[site]
        log = copy.log[:-1]
        copy = copy._replace(log=log, promised=log[-1], confirmed=min(copy.confirmed, len(log)))
        return state._replace(copies=replace_at(state.copies, site, copy), losses=state.losses + 1)

    # ------------------------------------------------------------------- what follows at once

    def settled(self, state: State) -> State:
        """Counts acknowledgements, confirms, and tells copies what is confirmed."""
        for writer in self.processes:
            process = state.processes[writer]
            if process.begun:
                state = self._settled(state, writer, process)
        return self._without_dead_lives(state)

    def _settled(self, state: State, writer: int, process: Process) -> State:
        begun = state.lives[process.life]
        assert begun is not None
        acknowledged = dict(process.acknowledged)
        for site, copy in enumerate(state.copies):
            if self.rank(copy.promised) == self.rank(process.life) or (
                self.rules.no_fencing and copy.promised
            ):
                if not self._reaches_site(writer, site):
                    continue
                ticks = self.same_length(copy.log, begun.log)
                member = identity(site, copy.generation)
                if ticks > acknowledged.get(member, 0):
                    acknowledged[member] = ticks
        confirmed = self._confirmed(state, writer, begun, acknowledged)
        if confirmed > begun.confirmed:
            begun = begun._replace(confirmed=confirmed)
            state = state._replace(lives=replace_at(state.lives, process.life, begun))
        process = process._replace(acknowledged=tuple(sorted(acknowledged.items())))
        copies = tuple(
            self._told(copy, process.life, begun) if self._reaches_site(writer, site) else copy
            for site, copy in enumerate(state.copies)
        )
        return state._replace(copies=copies, processes=replace_at(state.processes, writer, process))

    def _told(self, copy: Copy, life: int, begun: Life) -> Copy:
        if self.rank(copy.promised) != self.rank(life):
            return copy
        if self.rules.serve_unconfirmed:
            return copy._replace(confirmed=len(copy.log))
        known = min(begun.confirmed, self.same_length(copy.log, begun.log))
        return copy._replace(confirmed=known) if known > copy.confirmed else copy

    def _confirmed(
        self, state: State, writer: int, begun: Life, acknowledged: dict[int, int]
    ) -> int:
        confirm = self.world.confirm - self.rules.confirm_too_few
        record = begun.first + 1
        for _, members in (*begun.older, (0, begun.members)):
            lost = self._lost_now(state, writer, members)
            have = sum(acknowledged.get(member, 0) >= record for member in members)
            left = len(members) - len(lost)
            needed = confirm - len(lost) if self.rules.lost_acknowledge else min(confirm, left)
            if begun.founding:
                needed = max(needed, left)
            if (members != begun.members or begun.founding) and have < needed:
                return begun.confirmed
        counts = [acknowledged.get(member, 0) for member in begun.members]
        if self.rules.learner_counts:
            counts = [*acknowledged.values(), *counts]
        upto = sorted(counts, reverse=True)[confirm - 1]
        if not self.rules.own_copy_optional and writer != CLOSER:
            upto = min(upto, acknowledged.get(begun.members[0], 0))
        if upto < record and not self.rules.unsealed_ticks:
            return begun.confirmed
        return max(upto, begun.confirmed)

    def _lost_now(self, state: State, writer: int, members: Members) -> set[int]:
        return self.lost(state, writer, members, dict(enumerate(state.copies)))

    def _without_dead_lives(self, state: State) -> State:
        """Forgets what a life has sent once nobody can take it any more."""
        lives = list(state.lives)
        for life, begun in enumerate(lives):
            if begun is None or len(begun.log) <= begun.confirmed:
                continue
            if any(process.life == life for process in state.processes):
                continue
            if any(copy.promised <= life for copy in state.copies) or self.rules.no_fencing:
                continue
            lives[life] = begun._replace(log=begun.log[: begun.confirmed])
        return state._replace(lives=tuple(lives))

    # --------------------------------------------------------------------------------- check

    def check(self, state: State) -> None:
        """Raises if a claim of the ADR does not hold in this state."""
        begun = [life for life in state.lives if life is not None and life.log]
        truth: Log = ()
        for at, life in enumerate(begun):
            sure = life.log[: life.confirmed]
            if len(sure) > len(truth):
                if sure[: len(truth)] != truth:
                    raise BrokenPromiseError("a confirmed tick has two contents")
                truth = sure
            elif truth[: len(sure)] != sure:
                raise BrokenPromiseError("a confirmed tick has two contents")
            for later in begun[at + 1 :]:
                if self._is_alive(state, later) and later.log[: len(sure)] != sure:
                    raise BrokenPromiseError("a later life lacks a confirmed tick")
        for copy in state.copies:
            served = copy.log[: copy.confirmed]
            if truth[: len(served)] != served:
                raise BrokenPromiseError("a copy serves a tick that is not confirmed")

    @staticmethod
    def _is_alive(state: State, life: Life) -> bool:
        return len(life.log) > life.confirmed

    # ------------------------------------------------------------------------------- progress

    def recovers(self, state: State, writer: int, file: int) -> bool:
        """Whether a process can start and confirm if all that is left is up and reached."""
        for _ in range(4):
            life = len(state.lives)
            state = state._replace(lives=(*state.lives, None))
            state = self.asked(state, writer, life, file)
            for site in range(FIRST_KEEPER, self.sites):
                state = self.promised(state, site, life)
            begun = self.begun(state, writer, (writer, *range(FIRST_KEEPER, self.sites)))
            if begun is None:
                return False
            state = self.settled(begun)
            written = state.lives[life]
            assert written is not None
            for site in (writer, *range(FIRST_KEEPER, self.sites)):
                while self.may_take(state.copies[site], life, written):
                    state = self.taken(state, site, life)
            state = self.settled(state)
            written = state.lives[life]
            assert written is not None
            if written.confirmed > written.first and not any(
                self._gone(state, writer, member) for member in written.members
            ):
                return True
        return False

    def _gone(self, state: State, writer: int, member: int) -> bool:
        site, generation = divmod(member, GENERATIONS)
        return site == 1 - writer or state.copies[site].generation != generation

    def disks_lost(self, state: State, writer: int) -> int:
        """How many disks of the newest confirmed set a process has to do without."""
        sets = [life.members for life in state.lives if life and life.confirmed > life.first]
        if sets:
            return sum(self._gone(state, writer, member) for member in sets[-1])
        used = {member for life in state.lives if life for member in life.members}
        return sum(self._gone(state, writer, member) for member in used)

    def check_progress(self, state: State) -> None:
        """Raises if a process cannot start although fewer than w disks are lost."""
        for writer in self.writers:
            if self.disks_lost(state, writer) >= self.world.confirm:
                continue
            for file in range(len(self.world.files) or 1):
                if not self.recovers(state, writer, file):
                    raise BrokenPromiseError(f"{name_of(writer)} can never start again")

    # ------------------------------------------------------------------------------ all steps

    def steps(self, state: State) -> Iterator[tuple[Action, State]]:
        """Every action that is possible, with the state that it leads to."""
        yield from self._starts(state)
        yield from self._begins(state)
        for life, begun in enumerate(state.lives):
            if begun is None:
                continue
            for site, copy in enumerate(state.copies):
                if self._may_promise(state, site, copy, life):
                    yield ("promise", site, life), self.promised(state, site, life)
                if self._reaches(state, life, site) and self.may_take(copy, life, begun):
                    yield ("take", site, life), self.taken(state, site, life)
                    if self.rules.repetition_cuts and copy.promised == life:
                        for at in range(len(copy.log) - 1):
                            yield ("repeat", site, at), self.repeated(state, site, at)
        for process in state.processes[:CLOSER]:
            begun = state.lives[process.life] if process.begun else None
            ticks = self.world.ticks[min(process.life, len(self.world.ticks)) - 1]
            if begun and len(begun.log) - begun.first <= ticks:
                yield ("append", process.life, 0), self.appended(state, process.life)
        yield from self._faults(state)

    def _starts(self, state: State) -> Iterator[tuple[Action, State]]:
        for writer in self.processes:
            process = state.processes[writer]
            known = max(process.life, 0 if writer == CLOSER else state.copies[writer].promised)
            for life in range(1, self.world.lives + 1):
                if state.lives[life] is not None or life <= known:
                    continue
                files = 1 if writer == CLOSER else len(self.world.files) or 1
                for file in range(files):
                    number = writer * 10 + file
                    yield ("start", number, life), self.asked(state, writer, life, file)

    def _begins(self, state: State) -> Iterator[tuple[Action, State]]:
        for writer in self.processes:
            process = state.processes[writer]
            if not process.life or process.begun:
                continue
            others = [
                site
                for site, answer in enumerate(process.answers)
                if answer is not None and (site != writer or writer == CLOSER)
            ]
            subsets = chain.from_iterable(
                combinations(others, size) for size in range(len(others) + 1)
            )
            own = () if writer == CLOSER else (writer,)
            for subset in subsets:
                after = self.begun(state, writer, (*own, *subset))
                if after is not None:
                    mask = sum(1 << site for site in subset)
                    yield ("begin", writer, mask), after

    def _reaches(self, state: State, life: int, site: int) -> bool:
        """Each process of the origin reaches its own copy and the keepers, a closer only these."""
        if site >= FIRST_KEEPER:
            return True
        begun = state.lives[life]
        return (
            begun is not None
            and not begun.closing
            and bool(begun.members)
            and (begun.members[0] == identity(site, state.copies[site].generation))
        )

    def _may_promise(self, state: State, site: int, copy: Copy, life: int) -> bool:
        if site < FIRST_KEEPER or life == copy.promised:
            return False
        return self.rank(life) > self.rank(copy.promised) or (
            self.rules.equal_lives and self.rank(life) == self.rank(copy.promised)
        )

    def _faults(self, state: State) -> Iterator[tuple[Action, State]]:
        for site, copy in enumerate(state.copies):
            if state.losses < self.world.losses and (copy.promised or copy.log):
                after = self.disk_lost(state, site)
                if all(self.disks_lost(after, w) < self.world.confirm for w in self.writers):
                    yield ("lose", site, 0), after
            if state.losses < self.world.rollbacks and len(copy.log) > 1 and site >= FIRST_KEEPER:
                yield ("roll back", site, 0), self.rolled_back(state, site)
            if self.rules.unsynced_promise and copy.synced_promise < copy.promised:
                now = copy._replace(promised=copy.synced_promise)
                yield (
                    ("cut power", site, 0),
                    state._replace(copies=replace_at(state.copies, site, now)),
                )
