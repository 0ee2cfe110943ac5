"""Copies in the store and on the simulated disk: after the same history both hold the same.

A history opens, cuts, drops, appends, syncs, deletes, begins the own log anew, puts rows of copies,
and ends lives in order or by a crash. Crashes come
after a sync, because what they leave of unsynced writes is chance on both sides; `tests/power` and
the tests of the simulated disk try that."""

import shutil
import tempfile
from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from anabranch.core.contract import Recovered
from anabranch.sim.disk import Disk
from tests.store_parts import Bench, body_of

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
streams = st.sampled_from(["x", "Ÿ/2", "long " * 50])
counts = st.integers(1, 7)


class CopyMachine(RuleBasedStateMachine):
    """One history, performed by a store and by a simulated disk."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.directory = Path(self.folder.name) / "0"
        self.life = 0
        self.disk = Disk()
        self.bench = Bench(self.directory)
        #: Stream → first and last tick of its copy.
        self.copies: dict[str, tuple[int, int]] = {}
        #: Stream → tick → the number of the cut after which it was appended, if any.
        self.eras: dict[str, dict[int, int]] = {}
        self.cuts = 0
        self.puts = 0

    def _sync(self) -> None:
        self.disk.sync(self.disk.mark())
        self.bench.settle()

    @rule(stream=streams, first=st.integers(1, 50))
    def open_or_drop(self, stream: str, first: int) -> None:
        if self.copies.pop(stream, None) is not None:
            self.bench.store.drop_copy(stream)
            self.disk.drop_copy(stream)
        else:
            self.copies[stream] = (first, first - 1)
            self.bench.store.open_copy(stream, first)
            self.disk.open_copy(stream, first)

    @rule(stream=streams, count=counts)
    def append(self, stream: str, count: int) -> None:
        if stream not in self.copies:
            return
        first, last = self.copies[stream]
        for tick in range(last + 1, last + count + 1):
            self.eras.setdefault(stream, {})[tick] = self.cuts
            self.bench.store.append(tick, self._body(stream, tick), stream)
            self.disk.append(tick, self._body(stream, tick), stream)
        self.copies[stream] = (first, last + count)

    def _body(self, stream: str, tick: int) -> bytes:
        """A record that tells when it was appended."""
        return body_of(tick) + bytes(self.eras[stream][tick] % 50)

    @rule(stream=streams, share=st.floats(0, 1), is_synced=st.booleans())
    def cut(self, stream: str, share: float, *, is_synced: bool) -> None:
        if stream not in self.copies:
            return
        if is_synced:
            self._sync()
        first, last = self.copies[stream]
        pieces = self.bench.store.pieces(stream)
        # Older ticks may be deleted.
        first = max([first, *(piece.first_tick for piece in pieces[:1])])
        tick = first - 1 + int(share * (last + 1 - first))
        self.cuts += 1
        self.copies[stream] = (self.copies[stream][0], tick)
        self.bench.store.cut_copy(stream, tick)
        self.disk.cut_copy(stream, tick)
        self._sync()

    @rule(first=st.integers(1, 50))
    def begin_the_own_log_anew(self, first: int) -> None:
        # Otherwise the simulated disk reports ticks that were used twice.
        first += max(self.disk.ever_synced, default=0)
        self.bench.reset(first)
        self.disk.drop_copy("")
        self.disk.open_copy("", first)

    @rule(stream=streams, key=st.sampled_from("abc"))
    def put_row(self, stream: str, key: str) -> None:
        if stream in self.copies:
            self.puts += 1
            for put in (self.bench.store.put, self.disk.put):
                put("copy_rows", f"{stream}\x1f{key}", str(self.puts).encode())

    @rule(stream=streams, bytes_max=st.integers(0, 40), after=st.sampled_from(["", "a", "b"]))
    def read_rows(self, stream: str, bytes_max: int, after: str) -> None:
        self._sync()
        prefix = f"{stream}\x1f"
        after = f"{prefix}{after}" if after else ""
        found = self.bench.read_rows(prefix, after, bytes_max)
        assert (found.rows, found.is_last) == self.disk.read_rows(
            "copy_rows", prefix, after, bytes_max
        )
        assert not found.is_damaged

    @rule(count=counts)
    def append_own(self, count: int) -> None:
        for tick in range(self.bench.tick + 1, self.bench.tick + count + 1):
            self.disk.append(tick, body_of(tick))
        self.bench.append(count)

    @rule()
    def put(self) -> None:
        self.puts += 1
        value = str(self.puts).encode()
        self.bench.store.put("t", "k", value)
        self.disk.put("t", "k", value)

    @rule()
    def sync(self) -> None:
        self._sync()

    @rule(stream=streams, share=st.floats(0, 1))
    def forget(self, stream: str, share: float) -> None:
        if stream in self.copies:
            self._sync()
            first, last = self.copies[stream]
            tick = first + int(share * (last - first))
            self.bench.store.forget(tick, stream)
            self.bench.settle()
            pieces = self.bench.store.pieces(stream)
            assert not pieces or pieces[0].first_tick <= max(first, tick + 1)

    @rule(crashes=st.booleans())
    def restart(self, *, crashes: bool) -> None:
        self._sync()
        self.life += 1
        image = Path(self.folder.name) / str(self.life)
        if crashes:
            shutil.copytree(self.directory, image)
        self.bench.store.close()
        assert not self.bench.ears.errors
        if crashes:
            self.directory = image
            self.disk.crash(Random(self.life))
        self.bench = Bench(self.directory)
        assert not self.bench.store.notes
        self._compare(self.bench.store.recovered, self.disk.recover())

    def _compare(self, found: Recovered, modelled: Recovered) -> None:
        assert found.lost_copies == modelled.lost_copies == ()
        assert [*found.records] == [*modelled.records]
        assert found.first_tick == modelled.first_tick
        assert found.catalog == modelled.catalog
        ends = {stream: copy.last_tick for stream, copy in found.copies.items()}
        assert ends == {stream: copy.last_tick for stream, copy in modelled.copies.items()}
        assert ends == {stream: last for stream, (_, last) in self.copies.items()}

    @invariant()
    def what_is_synced_can_be_read(self) -> None:
        if self.life % 2:
            self._sync()
            for stream, (first, last) in self.copies.items():
                pieces = self.bench.store.pieces(stream)
                oldest = pieces[0].first_tick if pieces else first
                found = self.bench.read(oldest, last, stream=stream)
                assert found == tuple(self._body(stream, tick) for tick in range(oldest, last + 1))
                assert found == self.disk.read(oldest, last, 10**9, stream)

    def teardown(self) -> None:
        self.bench.store.close()
        assert not self.bench.ears.errors
        self.folder.cleanup()


CopyMachine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=25)
test_a_store_and_a_simulated_disk_keep_the_same_copies = CopyMachine.TestCase
