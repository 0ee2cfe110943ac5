"""Mutants of reads from copies: what a keeper must not tell an edge, and what an edge must not take
from a keeper."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_READS = "anabranch.core.replication.copy_reads"
_FOUND_BY = "tests/sim/test_copy_reads.py"

MUTANTS: dict[str, Mutant] = {
    "serves-unconfirmed": Mutant(
        "a keeper serves records that are not confirmed",
        Edit(f"{_READS}:known_through", "min(copy.confirmed, copy.synced)", "copy.synced"),
        found_by=_FOUND_BY,
    ),
    "stale-end": Mutant(
        "a keeper takes the newest tick that it knows for the end of the stream",
        Edit(
            f"{_READS}:CopyReads._replay",
            "return [CarryTo(edge, NotInCopy(replay.request))]",
            "from anabranch.model.frames import Answer\n"
            "nothing = Answer(replay.request, replay.first, known, known, [])\n"
            "return [CarryTo(edge, nothing)]",
        ),
        Edit(
            "anabranch.core.edge.edge:Edge._note_source",
            "if isinstance(answer, Answer) and answer.through < answer.first:",
            "if False:",
        ),
        found_by=_FOUND_BY,
    ),
    "resend-left-out": Mutant(
        "a keeper calls a tick silent that has an event",
        Edit(
            f"{_READS}:CopyReads._resent",
            "data += some_data\nsilent += some_silent",
            "data += some_data[1:]\n"
            "silent += some_silent\n"
            "silent += [(each.tick, each.tick) for each in some_data[:1]]",
        ),
        found_by=_FOUND_BY,
    ),
    "deleted-by-guess": Mutant(
        "a keeper takes ticks after its copy for deleted",
        Edit(
            f"{_READS}:CopyReads._nack",
            "due.overlap(1, oldest - 1)]",
            "due.overlap(1, oldest - 1) + due.overlap(known + 1, 1 << 62)]",
        ),
        found_by="tests/unit/core/replication/test_copy_reads.py",
    ),
}
