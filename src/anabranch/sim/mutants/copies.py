"""Mutants of copies: promises, confirmations, starts, and what copies keep (ADR 0030)."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_KEEPER = "anabranch.core.replication.keeper:Keeper"
_WRITER = "anabranch.core.replication.writer:StreamWriter"
_REPLICATION = "anabranch.core.replication.replication:Replication"
_FINDER = "tests/unit/core/replication/test_copy_mutants.py"

MUTANTS: dict[str, Mutant] = {
    "confirm-before-keeper": Mutant(
        "a tick is confirmed when it was sent to the copies",
        Edit(f"{_WRITER}._acked", "return peer.acked if", "return peer.next - 1 if"),
        found_by=_FINDER,
        copies=True,
    ),
    "emit-unconfirmed": Mutant(
        "ticks are confirmed to publishers and emitted when this disk has them",
        Edit(f"{_REPLICATION}.released", "if gated[0][2] > writer.confirmed:", "if False:"),
        seed=3,
        anomaly="phantom",
        copies=True,
    ),
    "unfenced": Mutant(
        "a copy that has promised a life takes records of lower ones",
        Edit(f"{_KEEPER}._keep", "if frame.life < row.promised:", "if False:"),
        found_by=_FINDER,
        copies=True,
    ),
    "start-too-few": Mutant(
        "a life begins after one answer",
        Edit(
            f"{_WRITER}._has_quorum",
            "wanted = max(copies.start_quorum, min(copies.confirm, self._whole(copies)))",
            "wanted = 1",
        ),
        found_by=_FINDER,
        copies=True,
    ),
    "adopt-longest": Mutant(
        "a start adopts the longest copy, and not the one with the newest life",
        Edit(f"{_WRITER}._evaluate", "key=_end", "key=lambda answer: answer.last"),
        found_by=_FINDER,
        copies=True,
    ),
    "identity-returns": Mutant(
        "a copy that was lost is made again with the identity that it had",
        Edit(f"{_KEEPER}._ask", "CopyRow(self._next_number)", "CopyRow(1)"),
        seed=20,
        anomaly="under-replicated",
        copies=True,
    ),
    "learner-counts": Mutant(
        "copies that are no members confirm ticks",
        Edit(
            f"{_WRITER}._tick_at",
            "map(self._acked, copies.members)",
            "[self._own_synced, *(peer.acked for peer in self._peers.values())]",
        ),
        found_by=_FINDER,
        copies=True,
    ),
    "cuts-confirmed": Mutant(
        "a copy cuts off ticks that it knows to be confirmed",
        Edit(f"{_KEEPER}._change_lives", "if kept < copy.confirmed:", "if False:"),
        found_by=_FINDER,
        copies=True,
    ),
    "acknowledges-unverified": Mutant(
        "a copy acknowledges records that may not be those of the new life's writer",
        Edit(f"{_KEEPER}._kept", "min(copy.synced, copy.verified)", "copy.synced"),
        found_by=_FINDER,
        copies=True,
    ),
    "rows-not-carried": Mutant(
        "rows of the catalog are not in the stream",
        Edit(f"{_REPLICATION}.rows_to_append", "return self._rows.take()", "return []"),
        found_by=_FINDER,
        copies=True,
    ),
    "rows-before-confirmed": Mutant(
        "a copy puts rows into its catalog before they are confirmed",
        Edit(f"{_KEEPER}._apply_rows", "copy.confirmed <= copy.row.applied", "False"),
        Edit(
            f"{_KEEPER}._apply_rows",
            "takewhile(copy.confirmed.__ge__, copy.unapplied)",
            "copy.unapplied",
        ),
        found_by=_FINDER,
        copies=True,
    ),
    "promise-unsynced": Mutant(
        "a promise is answered before it is on disk",
        Edit(
            f"{_KEEPER}._ask",
            "return self._put(copy, changed)",
            "copy.asked = None\nputs = self._put(copy, changed)\n"
            "return [*puts, self._answer(copy, source, ask)]",
        ),
        found_by=_FINDER,
        copies=True,
    ),
    "deletes-unconfirmed": Mutant(
        "a copy deletes ticks that it does not know to be confirmed",
        Edit(
            f"{_KEEPER}._delete",
            "first - 1 > min(copy.confirmed, copy.synced)",
            "first - 1 > copy.last",
        ),
        found_by=_FINDER,
        copies=True,
    ),
    "life-on-record-stays": Mutant(
        "a life whose record a crash took keeps its place among the lives of a copy",
        Edit(
            "anabranch.core.replication.keeper:_has_other_lives",
            "return known != [start for start in other if last < start.tick <= end]",
            "ticks = {start.tick for start in known}\n"
            "return any(last < each.tick <= end and each.tick not in ticks for each in other)",
        ),
        found_by=_FINDER,
        copies=True,
    ),
    "first-frame-once": Mutant(
        "the frame that asks a copy how far it agrees is sent once",
        Edit(f"{_WRITER}._probe", "peer.expect(now + 2 * self._options.ask_again_s)", "pass"),
        found_by=_FINDER,
        copies=True,
    ),
}
