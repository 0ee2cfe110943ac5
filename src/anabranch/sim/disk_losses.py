"""Disk losses: a broker dies, and comes back with an empty disk, or with an old copy of its disk.

Rules

1. A disk is lost only if every stream stays recoverable: of the copies that count, those of brokers
   that are whole, at least as many remain as a life needs to begin, and at most `confirm - 1` are
   lost. A copy is whole if its broker has it under the identity that the copy set names. A copy
   that was lost counts until its successor is in the set, and the copies know it.
2. A disk is set back only if it could be lost as well, and while all brokers are up: then another
   copy knows more and is asked. What is set back must be repaired without an operator.
3. What is asked of the network in return: nothing that was confirmed is lost, no confirmed tick
   changes (`tick-reused`), no keeper has another record at a tick than its origin confirmed
   (`copy-differs`) or believes in ticks that are not confirmed (`stale-read`), and when all is
   healed every stream has all of its copies again (`under-replicated`).
"""

from collections.abc import Callable, Iterator
from random import Random

from anabranch.check import history as told
from anabranch.check.checker import Anomaly
from anabranch.core.broker import Broker
from anabranch.core.replication.keeper import KeptCopy
from anabranch.core.replication.writer import StreamWriter
from anabranch.model.replication import CopyId, CopySet, Life
from anabranch.sim.disk import Disk
from anabranch.sim.world import World


class DiskLosses:
    """Lost disks of one world, and the watch over copies. See the top of this module."""

    def __init__(self, world: World, history: list[told.Record], chance: Random) -> None:
        self._world = world
        self._history = history
        self._chance = chance
        self._is_over = False
        #: How many were lost, and set back.
        self.count = 0
        self.set_back = 0

    def begin(self, lose_rate: float, set_back_rate: float) -> None:
        """Let it happen, so often per second."""
        if lose_rate:
            self._later(lose_rate, self._lose, lose_rate)
        if set_back_rate:
            self._later(2 * set_back_rate, self._take_copy, set_back_rate)

    def heal(self) -> None:
        self._is_over = True

    def _later(self, rate: float, action: Callable[..., None], *arguments: object) -> None:
        self._world.after(self._chance.expovariate(rate), action, *arguments)

    def _take_copy(self, rate: float) -> None:
        """Take a copy of a disk, to which it is set back later."""
        if self._is_over:
            return
        victim = self._chance.choice(list(self._world.hosts))
        old = self._world.hosts[victim].disk.copied(self._chance)
        self._later(2 * rate, self._set_back, rate, victim, old)

    def _set_back(self, rate: float, victim: str, old: Disk) -> None:
        if self._is_over:
            return
        world = self._world
        host = world.hosts[victim]
        is_noticed = all(each.broker is not None for each in world.hosts.values())
        if host.is_gone or not is_noticed or not self._is_survivable(victim):
            world.after(0.1, self._set_back, rate, victim, old)
            return
        self.set_back += 1
        self._kill(victim)
        host.disk = host.disk.set_back(old, keeps_catalog=False)
        world.after(0.02 + self._chance.random(), world.start, victim)
        self._later(2 * rate, self._take_copy, rate)

    def _lose(self, rate: float) -> None:
        if self._is_over:
            return
        self._later(rate, self._lose, rate)
        world = self._world
        victim = self._chance.choice(list(world.hosts))
        host = world.hosts[victim]
        if host.broker is None or host.is_leaving or not self._is_survivable(victim):
            return
        self.count += 1
        self._kill(victim)
        host.disk.lose()
        world.after(0.02 + self._chance.random(), world.start, victim)

    def _kill(self, victim: str) -> None:
        self._world.kill(victim)
        # What is fetched from a copy may be more than the origin had left.
        self._history.append(told.Restored(victim))

    # -- what may be lost -------------------------------------------------------------------------

    def _is_survivable(self, victim: str) -> bool:
        return all(self._is_spare(victim, stream, sets) for stream, sets in self._all_sets())

    def _all_sets(self) -> Iterator[tuple[str, list[CopySet]]]:
        """Stream → every copy set that some copy of it still names."""
        for name, host in self._world.hosts.items():
            if host.broker is None:
                # Nobody knows what it would need.
                yield name, []
            elif host.broker.replication.writer is not None:
                yield name, self._sets_of(host.broker.replication.writer)

    def _sets_of(self, writer: StreamWriter) -> list[CopySet]:
        copies = writer.copies
        if not writer.is_leading or copies is None or not writer.is_settled:
            return []
        # Until its copies know that a life is confirmed, a start asks the older sets as well, and
        # these may lack a copy already.
        known = [copy for member in copies.members for copy in self._kept(writer.stream, member)]
        return [copies] if all(_is_told(copy, writer.life) for copy in known) else []

    def _kept(self, stream: str, member: CopyId) -> Iterator[KeptCopy]:
        """The copy at a keeper, if it is the one that is a member."""
        host = self._world.hosts.get(member.broker)
        if host is not None and host.broker is not None:
            for copy in host.broker.replication.keeper.copies:
                if copy.stream == stream and copy.id_at(member.broker) == member:
                    yield copy

    def _is_spare(self, victim: str, stream: str, sets: list[CopySet]) -> bool:
        if not sets:
            return False
        for copies in sets:
            whole = [member for member in copies.members if self._is_whole(stream, member)]
            others = [member for member in whole if member.broker != victim]
            if len(others) == len(whole):
                continue
            gone = len(copies.members) - len(others)
            if gone > copies.confirm - 1 or len(others) < copies.start_quorum:
                return False
        return True

    def _is_whole(self, stream: str, member: CopyId) -> bool:
        broker = self._world.hosts[member.broker].broker
        if broker is None:
            return False
        if member.broker == stream:
            writer = broker.replication.writer
            return writer is not None and writer.own_id == member
        return any(True for _ in self._kept(stream, member))

    # -- the watch --------------------------------------------------------------------------------

    def look(self) -> Iterator[Anomaly]:
        """What is wrong with copies now, if anything."""
        for name, host in self._world.hosts.items():
            if host.broker is not None:
                yield from self._wrong_at(name, host.broker)

    def _wrong_at(self, name: str, broker: Broker) -> Iterator[Anomaly]:
        for copy in broker.replication.keeper.copies:
            if not copy.row.is_open:
                continue
            confirmed = self._world.hosts[copy.stream].disk.ever_synced
            newest = max(confirmed, default=0)
            if copy.confirmed > newest:
                text = f"{name} takes tick {copy.confirmed} for confirmed, but {newest} is"
                yield Anomaly("stale-read", "", copy.stream, copy.confirmed, text)
            disk = self._world.hosts[name].disk
            for tick in range(max(copy.row.first, copy.confirmed - 20), copy.confirmed + 1):
                record = disk.read(tick, tick, 1, copy.stream)
                if record and tick in confirmed and record[0] != confirmed[tick]:
                    text = f"{name} has another record than the one confirmed"
                    yield Anomaly("copy-differs", "", copy.stream, tick, text)

    def missing(self) -> Iterator[Anomaly]:
        """Streams without all of their copies, once all is well."""
        for name, host in self._world.hosts.items():
            writer = None if host.broker is None else host.broker.replication.writer
            if writer is None or host.is_gone:
                continue
            text = self._missing(writer, host.config.options.copies)
            origin = None if host.broker is None else host.broker.origin
            inquiry = None if origin is None else origin.inquiry
            if self.set_back and inquiry is not None and inquiry.verdict is not None:
                text = "an operator must renew its log"
            if text:
                yield Anomaly("under-replicated", "", name, 0, f"stream {name}: {text}")

    def _missing(self, writer: StreamWriter, wanted: int) -> str:
        if not writer.is_leading or writer.copies is None:
            return f"its writer is {writer.state}"
        members = writer.copies.members
        if len(members) < wanted:
            return f"{len(members)} of {wanted} copies"
        lost = [each for each in members if not self._is_whole(writer.stream, each)]
        return f"the copy {lost[0]} is lost" if lost else ""


def _is_told(copy: KeptCopy, life: Life) -> bool:
    """Whether a copy knows, on its disk, that this life is confirmed."""
    starts = copy.row.starts
    return bool(starts) and starts[-1].life == life and copy.row.confirmed >= starts[-1].tick
