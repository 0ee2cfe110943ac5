"""Tunable broker behaviour: intervals, windows and retention.

The defaults suit a local network; the simulator draws others. Times are in seconds. Contradictory
options raise `LocalError` on construction.
"""

from typing import Literal

import msgspec

from anabranch.model.errors import LocalError

RoutingName = Literal["flood", "tree", "mesh"]
Prefer = Literal["origin", "near"]

#: Default limit of the log bytes that one subscription may hold back.
HELD_BACK_BYTES_MAX = 1 << 39
#: Limit of `copies`.
COPIES_MAX = 7
#: Default limit of items that are processed without a pause.
_PORTION_MAX = 64


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one broker."""

    # -- links
    #: An idle link sends a `Ping` this often.
    heartbeat_s: float = 0.5
    #: The longest silence before a link is cut.
    dead_after_s: float = 2.0
    #: How far a neighbour's life, a time in ns, may be ahead of this broker's clock.
    life_lead_s: float = 86_400.0

    # -- clients
    #: Time limit for a client to complete a frame, from its first byte.
    frame_s: float = 30.0

    # -- steps
    #: Work per step, in microseconds on an ordinary machine. The rest is done in further steps,
    #: and other clients get their turn in between.
    step_work_max: int = 20_000

    # -- origin
    #: A starting origin accepts no events until its neighbours have reported their knowledge of its
    #: stream. If it reaches none of them for this long, it continues alone, with a warning.
    start_alone_after_s: float = 10.0
    #: `refuse`: a full log refuses events. `lossy`: it deletes its oldest ticks.
    retention: Literal["refuse", "lossy"] = "refuse"
    #: Retention of ticks that all edges are done with, for later readers; unless the log is full.
    keep_s: float = 0.0
    #: Size of the log, in ticks and bytes of records, at which `retention` applies.
    log_ticks_max: int = 100_000_000
    log_bytes_max: int = 1 << 40
    #: Log bytes that one subscription may hold back. A tick followed by more bytes is no longer
    #: kept for subscriptions that have not acknowledged it; they receive it as withheld. None: half
    #: of the disk, if its size is known, and at most `HELD_BACK_BYTES_MAX`.
    held_back_bytes_max: int | None = None
    #: With lossy retention, the maximum age of ticks; None: no maximum.
    log_age_s_max: float | None = None
    #: Ticks, and bytes of their events, cached in memory for gap repair and replays.
    recent_ticks_max: int = 4_096
    recent_bytes_max: int = 64 * 1024 * 1024
    #: Ticks, and bytes of their events, that may wait for the disk; beyond that events are refused.
    unsynced_ticks_max: int = 16_384
    unsynced_bytes_max: int = 64 * 1024 * 1024
    #: A checkpoint is written to the catalog after this many synced ticks, for a quick start.
    checkpoint_ticks: int = 8_192
    #: Publishers on record. New publishers beyond this limit are refused.
    publishers_max: int = 1_000_000
    #: A publisher without an event or a session here for this long is forgotten, once the log has
    #: deleted its events. Events that it sent before are refused from then on.
    publisher_keep_s: float = 7 * 86_400.0
    #: New publishers and sinks that the clients of one host may add in one life of the broker, not
    #: counting those that were forgotten.
    host_publishers_max: int = 100_000
    #: How far a publisher's incarnation, a time in ns, may be ahead of this broker's clock. The
    #: same bound applies to batch numbers.
    incarnation_lead_s: float = 86_400.0
    #: Bytes of staged, uncommitted events (at most the staging share of `memory_bytes_max`), and
    #: the number of their tokens.
    stage_bytes_max: int = 128 * 1024 * 1024
    stage_tokens_max: int = 16_384
    #: The same for one client.
    client_stage_bytes_max: int = 96 * 1024 * 1024
    client_stage_tokens_max: int = 8_192
    #: Staged events that are not committed for this long are dropped.
    stage_keep_s: float = 3_600.0
    #: Events of a batch that are appended in one step; other publishers may interleave.
    slice_events_max: int = 1_024
    #: Concurrent reads of the log; further requests are dropped, and the edge repeats them.
    reads_max: int = 64
    #: New versions are collected for this long before they become a mark.
    mark_after_s: float = 0.02
    #: An idle stream announces its head this often.
    head_every_s: float = 0.5
    #: Ticks resent for one nack.
    nack_ticks_max: int = 1_024

    # -- replication
    #: Copies of this broker's stream: its own log, and one at each of `copies - 1` keepers.
    copies: int = 1
    #: A tick is confirmed when this many copies have synced it.
    #: Invariant: 1 <= confirm <= copies <= COPIES_MAX.
    confirm: int = 1
    #: The keepers of this broker's stream, nearest first; (): chosen by the shape of the network
    #: (`core.replication.placement`).
    keepers: tuple[str, ...] = ()
    #: Whom an edge asks first for ticks that it lacks: the origin, or the nearest keeper if that
    #: is nearer.
    prefer: Prefer = "origin"

    # -- edge
    #: A gap may stay open for this long before it is requested,
    nack_after_s: float = 0.05
    #: and is requested again after this long, backing off to eight times that.
    nack_again_s: float = 0.4
    #: An unanswered replay or hold is requested again after this long, with the same back-off.
    ask_again_s: float = 0.5
    #: An event waits this long for earlier events of its publisher in another stream; after that it
    #: is delivered, and the subscriber is told. A bound for each subscription and stream, which
    #: grows by a tenth of the time.
    order_within_s: float = 10.0
    #: Cursors are saved, and origins informed of progress, this often.
    done_every_s: float = 0.3
    #: Ticks, and bytes of their events, that a reorder buffer holds beyond a gap.
    line_ticks_max: int = 8_192
    line_bytes_max: int = 64 * 1024 * 1024
    #: Events, and their bytes, per replay.
    replay_events_max: int = 256
    replay_bytes_max: int = 1_048_576

    # -- tree and mesh routing
    #: Conjunctions that may change in one version of an edge's interest; at this number the version
    #: is announced at once.
    interest_conjunctions_max: int = 1_024

    # -- tree routing
    #: Subscription changes are collected for this long into one version.
    interest_after_s: float = 0.01
    #: Silence waits this long to be coalesced with more silence or data.
    silence_after_s: float = 0.02
    #: First timeout for the repair of lagging interest; it adapts to measured round trips.
    lag_after_s: float = 1.0
    #: Whether brokers replace many narrow conjunctions by a few wide ones, and above how many.
    coarsen: bool = False
    coarsen_above: int = 64
    #: Whether covered conjunctions are left out on the way up.
    covering: bool = True
    #: Whether vectors are sent once per link and mark, and sufficiency results are cached.
    digests: bool = True
    sufficiency_cache: bool = True

    # -- mesh routing
    #: Whether interest is sent only towards matching advertisements. Otherwise every origin
    #: advertises everything, and routing uses subscriptions alone.
    advertisements: bool = True
    #: Advertisements of one origin that are announced individually, and its trees for them.
    advertisements_max: int = 1_024
    trees_max: int = 8
    #: Comparisons of interest with advertisements per step; the rest are deferred, and count as
    #: matching until then.
    comparisons_max: int = 8_192
    #: An advertisement that no session makes any longer is withdrawn after this long.
    advertised_for_s: float = 5.0
    #: `fixed`: events stay on their tree. `dynamic`: they take the path of least cost,
    paths: Literal["fixed", "dynamic"] = "dynamic"
    #: by this link cost.
    cost: Literal["utilisation", "waiting"] = "utilisation"

    # -- patterns
    #: A join point saves its progress this often,
    pattern_save_s: float = 1.0
    #: and lets time pass this often for conditions that depend on it.
    pattern_look_s: float = 0.1
    #: A message that another broker does not answer is sent again after this long.
    pattern_again_s: float = 1.0
    #: A moved or dropped join point is remembered for this long.
    pattern_gone_s: float = 600.0
    #: Match attempts of all join points of a broker per step, in the unit of `pattern_tries_max`:
    #: about ten milliseconds. The rest waits for the next step.
    pattern_step_tries: int = 20_000
    #: Matches per second that one pattern, and all patterns of one client at one broker, may
    #: publish. More are delayed.
    pattern_matches_per_s: int = 1_000
    pattern_client_matches_per_s: int = 5_000
    #: A join point placed by cost looks for a better broker this often.
    pattern_review_s: float = 10.0

    @property
    def held_back_max(self) -> int:
        """`held_back_bytes_max`, or its default."""
        given = self.held_back_bytes_max
        return HELD_BACK_BYTES_MAX if given is None else given

    def portion(self, work: int, at_most: int = _PORTION_MAX) -> int:
        """How many items, of `work` each, are processed without a pause."""
        return max(1, min(at_most, self.step_work_max // (4 * work)))

    def __post_init__(self) -> None:
        if not self.publisher_keep_s > 0:
            raise LocalError(f"publisher_keep_s is {self.publisher_keep_s}; it must be positive")
        self._check_age()
        self._check_copies()

    def _check_age(self) -> None:
        age_s_max = self.log_age_s_max
        if age_s_max is None:
            return
        if not age_s_max > 0:
            raise LocalError(f"log_age_s_max is {age_s_max}; it must be positive, or None")
        if self.retention != "lossy":
            raise LocalError(
                f"log_age_s_max is {age_s_max}, but retention is {self.retention!r}, which keeps"
                " ticks until every edge is done with them; set retention to"
                " 'lossy', or log_age_s_max to None"
            )

    def _check_copies(self) -> None:
        if not 1 <= self.copies <= COPIES_MAX:
            raise LocalError(f"copies is {self.copies}; give 1 to {COPIES_MAX}")
        if not 1 <= self.confirm <= self.copies:
            raise LocalError(
                f"confirm is {self.confirm}, but copies is {self.copies}; give confirm 1 to"
                f" {self.copies}"
            )
        if self.keepers and len(self.keepers) != self.copies - 1:
            raise LocalError(
                f"keepers has {len(self.keepers)} names, but copies is {self.copies}; name"
                f" {self.copies - 1} keepers, as the broker itself has the other copy, or none, to"
                " have them chosen"
            )
        if len(set(self.keepers)) < len(self.keepers):
            raise LocalError(f"keepers names a broker twice: {', '.join(self.keepers)}")
