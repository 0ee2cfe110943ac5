"""Staging: events that are brought for a later commit. This is the door for all of it.

Many tasks stage events with tokens of their own, in chunks (`tokens`); then one commit names the
tokens, and they become a batch of a sink (`batches`). Rules:

1. A chunk is answered when it is on disk. It is taken whole or refused, and a refusal changes
   nothing.
2. Its events are checked as if they were published, and one that is none is named by its position.
   They have no ids until they are committed.
3. A chunk that comes again is answered again, if it is the same. If it is another one, two tasks
   use one token, and the later one is refused.
4. A token of a batch takes no further chunks.
5. What is not taken for lack of room has the code `busy`, and may be sent again; a token that is
   more than all that may be staged has not, since it would be in vain. What waits for the disk is
   bounded too: answers by `STAGES_WAITING_MAX`, bytes by `unsynced_bytes_max`, so that neither a slow disk
   nor others' confirmations suffer from a flood of chunks. A chunk that lacks those before it has
   the code `unknown-token`: if they are still to come, it may follow them; if they were here, they
   were dropped, and it is in vain.

State: that of the parts; see there.
"""

from anabranch.core import departing
from anabranch.core.asks import Ask
from anabranch.core.batches import Batches, No
from anabranch.core.commit import Batch
from anabranch.core.contract import Note, Recovered, SendClient
from anabranch.core.earliest import earliest
from anabranch.core.intake import Intake
from anabranch.core.ledger import Ledger
from anabranch.core.options import Options
from anabranch.core.tokens import Tokens, size_of
from anabranch.model.client_frames import (
    BUSY,
    DEPARTING,
    TOO_LARGE,
    UNKNOWN_TOKEN,
    Commit,
    Discard,
    Refused,
    Stage,
    Staged,
)
from anabranch.model.encoding import check_draft
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.limits import Limits
from anabranch.model.names import check_name, check_optional_name

_REASON_CHARACTERS_MAX = 1_000
#: Answers that wait for the disk.
STAGES_WAITING_MAX = 4_096

ForStaging = Stage | Commit | Discard


class Staging:
    """What is staged at one origin, and its sinks. See the rules at the top of this module."""

    def __init__(
        self,
        ledger: Ledger,
        intake: Intake,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        *,
        now: float,
    ) -> None:
        self._ledger = ledger
        self._intake = intake
        self._options = options
        self._limits = limits
        self._tokens = Tokens(recovered, options, now)
        self.batches = Batches(ledger, intake, self._tokens, recovered, options)
        #: Chunks whose answers wait for the disk, and bytes of those that are new.
        self._waiting = 0
        self._waiting_bytes = 0

    @property
    def tokens(self) -> int:
        """Tokens that nobody has committed."""
        return self._tokens.count

    @property
    def size(self) -> int:
        """Bytes that are staged, those of batches under way included."""
        return self._tokens.size

    def frame(self, now: float, session: int, frame: ForStaging, client: str) -> list[Ask]:
        """A client wants something."""
        if isinstance(frame, Discard):
            return self.batches.drop(frame.tokens)
        asks: list[Ask] = []
        try:
            if isinstance(frame, Stage):
                check_name(frame.token, "token", self._limits.name_bytes_max)
                no = self._stage(now, session, frame, asks, client)
            else:
                check_name(frame.sink, "sink", self._limits.name_bytes_max)
                check_optional_name(frame.query, "query", self._limits.name_bytes_max)
                no = self.batches.commit(now, session, frame, asks, client)
        except EventError as error:
            no = (str(error), "")
        if no is not None:
            reason, code = no
            refused = Refused(frame.request, reason[:_REASON_CHARACTERS_MAX], code)
            asks.append(SendClient(session, refused))
        return asks

    def _stage(
        self, now: float, session: int, frame: Stage, asks: list[Ask], client: str
    ) -> No | None:
        name, index, drafts = frame.token, frame.index, frame.bodies
        if self.batches.owns(name):
            return f"what is staged as {name!r} was committed; choose another token", ""
        if self._waiting >= STAGES_WAITING_MAX:
            return f"{self._waiting} chunks wait for the disk; stage again later", BUSY
        token = self._tokens.find(name)
        expected = 0 if token is None else len(token.chunks)
        gathering = self._ledger.commit.gathering
        if token is not None and index < expected:
            is_last = token.is_complete and index == expected - 1
            if token.chunks[index] != drafts or is_last != frame.is_last:
                return f"another chunk {index} of {name!r} is here already; choose a new token", ""
        elif token is not None and token.is_complete:
            return f"{name!r} is complete with {expected} chunks; choose another token", ""
        elif index > expected:
            text = f"chunk {expected} of {name!r} is not here, or not any more"
            return f"{text}; stage it anew with another token", UNKNOWN_TOKEN
        elif no := self._no_room(name, drafts, client):
            return no
        elif bad := self._bad(drafts):
            return f"chunk {index} of {name!r}: {bad}", ""
        else:
            asks.append(self._tokens.add(now, name, drafts, frame.is_last, client))
            gathering.staged_bytes += size_of(drafts)
            self._waiting_bytes += size_of(drafts)
        gathering.is_dirty = True
        gathering.staged.append((session, frame.request))
        self._waiting += 1
        return None

    def _no_room(self, name: str, drafts: list[bytes], client: str) -> No | None:
        if self._intake.is_departing:
            return departing.REASON, DEPARTING
        if self._intake.is_full:
            return "the disk has no room; stage again later", BUSY
        if self._tokens.never_fits(name, drafts):
            options = self._options
            bytes_max = min(options.stage_bytes_max, options.client_stage_bytes_max)
            text = f"{name!r} has more than {bytes_max} bytes, which is all that a client may stage"
            return f"{text}; stage less with a token", TOO_LARGE
        if self._waiting_bytes > self._options.unsynced_bytes_max:
            return "the disk is behind: too much waits for it; stage again later", BUSY
        full = self._tokens.why_full(name, drafts, client)
        return (f"{full}; commit or discard some, or stage again later", BUSY) if full else None

    def _bad(self, drafts: list[bytes]) -> str:
        for place, draft in enumerate(drafts):
            try:
                check_draft(draft, self._limits)
            except RemoteError as error:
                return f"event {place}: {error}"
        return ""

    def left(self, session: int) -> None:
        """A session is over."""
        self.batches.left(session)

    # -- the disk and the clock -----------------------------------------------------------------

    def started(self, now: float) -> list[Ask]:
        """What was recovered is on disk."""
        return self.batches.started(now)

    def synced(self, now: float, batch: Batch) -> list[Ask]:
        """What the disk was given with this is safe; the intake has been told."""
        asks: list[Ask] = [SendClient(session, Staged(number)) for session, number in batch.staged]
        self._waiting -= len(batch.staged)
        self._waiting_bytes -= batch.staged_bytes
        self.batches.intended(batch.intended)
        return asks + self.batches.go_on(now)

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return earliest(self.batches.again_at, self._tokens.old_at())

    def time_passed(self, now: float) -> list[Ask]:
        """A deadline may have come."""
        asks: list[Ask] = []
        old = self._tokens.old(now)
        if old:
            asks += self.batches.drop(old)
            what = f"{len(old)} tokens were dropped, {old[0]!r} the first"
            kept_s = self._options.stage_keep_s
            asks.append(Note("warning", f"{what}: not committed within {kept_s:g} s"))
        again_at = self.batches.again_at
        if again_at is not None and again_at <= now:
            asks += self.batches.go_on(now)
        return asks
