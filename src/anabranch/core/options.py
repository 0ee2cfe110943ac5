"""How a broker behaves where a network may choose: intervals, windows, retention.

`Options()` suits a local network; the simulator draws others. Times are in seconds. Options that
contradict each other are a `LocalError` when they are made.
"""

from typing import Literal

import msgspec

from anabranch.model.errors import LocalError

#: What one subscription may hold back of a log, where nothing else is said.
HELD_BACK_BYTES_MAX = 1 << 39
#: Things that are done without a pause, at most, where nothing else is said.
_PORTION_MAX = 64


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One value for every choice."""

    # -- links
    #: A link on which nothing else was sent for this long gets a `Ping`.
    heartbeat_s: float = 0.5
    #: A link on which nothing was heard for this long is cut.
    dead_after_s: float = 2.0
    #: How far the life of a neighbour, a time in ns, may lead this broker's clock.
    life_lead_s: float = 86_400.0

    # -- clients
    #: A frame of a client has to be complete this long after its first byte.
    frame_s: float = 30.0

    # -- steps
    #: Work that one step does, in microseconds of an ordinary machine; what is left is done in
    #: further steps, and others have their turn between them.
    step_work_max: int = 20_000

    # -- origin
    #: A starting origin takes no event before its neighbours have told what they know of its
    #: stream; if none is reached for this long it goes on alone, with a warning.
    start_alone_after_s: float = 10.0
    #: `refuse`: a full log refuses events. `lossy`: it forgets its oldest ticks.
    retention: Literal["refuse", "lossy"] = "refuse"
    #: Ticks that nobody needs any more are kept for this long, for those who come later and ask
    #: for them; unless the log is full.
    keep_s: float = 0.0
    #: Ticks, and bytes of their records, that a log may hold before retention speaks.
    log_ticks_max: int = 100_000_000
    log_bytes_max: int = 1 << 40
    #: Bytes of a log that one subscription may hold back. A tick with more bytes after it is no
    #: longer kept for subscriptions that have not acknowledged it; they are told it is withheld.
    #: None: half of the disk, as far as that is known, and at most `HELD_BACK_BYTES_MAX`.
    held_back_bytes_max: int | None = None
    #: With lossy retention, ticks older than this are forgotten; None: age does not matter.
    log_age_s_max: float | None = None
    #: Ticks, and bytes of their events, kept in memory for gaps and replays.
    recent_ticks_max: int = 4_096
    recent_bytes_max: int = 64 * 1024 * 1024
    #: Ticks, and bytes of their events, that may wait for the disk before events are refused.
    unsynced_ticks_max: int = 16_384
    unsynced_bytes_max: int = 64 * 1024 * 1024
    #: Synced ticks after which the catalog takes over what records told, for a quick start.
    checkpoint_ticks: int = 8_192
    #: Publishers remembered. None is ever forgotten, so a new one beyond these is refused.
    publishers_max: int = 1_000_000
    #: New ones, sinks among them, that clients of one host may bring in a life of the broker.
    host_publishers_max: int = 100_000
    #: How far the incarnation of a publisher, a time in ns, may lead this broker's clock. So may
    #: the number of a batch.
    incarnation_lead_s: float = 86_400.0
    #: Bytes of events that are staged and not committed (at most the share of staging in
    #: `memory_bytes_max`), and the tokens they are staged with.
    stage_bytes_max: int = 128 * 1024 * 1024
    stage_tokens_max: int = 16_384
    #: Of these, what one client may stage.
    client_stage_bytes_max: int = 96 * 1024 * 1024
    client_stage_tokens_max: int = 8_192
    #: What is staged and not committed for this long is dropped.
    stage_keep_s: float = 3_600.0
    #: Events of a batch that are appended at once; others may publish in between.
    slice_events_max: int = 1_024
    #: Reads of the log at a time; what would need another one is left undone, and asked for again.
    reads_max: int = 64
    #: New versions are gathered for this long before they become a mark.
    mark_after_s: float = 0.02
    #: An idle stream tells its head this often.
    head_every_s: float = 0.5
    #: Ticks resent for one nack.
    nack_ticks_max: int = 1_024

    # -- edge
    #: A gap may stay open this long before it is asked for,
    nack_after_s: float = 0.05
    #: and is asked for again after this long, doubling up to eight times of it.
    nack_again_s: float = 0.4
    #: A replay or a hold that is not answered is asked for again after this long, likewise.
    ask_again_s: float = 0.5
    #: Cursors are written and origins are told this often.
    done_every_s: float = 0.3
    #: Ticks, and bytes of their events, that a line holds beyond a gap.
    line_ticks_max: int = 8_192
    line_bytes_max: int = 64 * 1024 * 1024
    #: Events one replay brings.
    replay_events_max: int = 256
    replay_bytes_max: int = 1_048_576

    # -- tree and mesh routing
    #: Conjunctions that may come and go in one version of an edge's interest; when there are this
    #: many, the version is told at once.
    interest_conjunctions_max: int = 1_024

    # -- tree routing
    #: Changes of subscriptions are gathered for this long into one version.
    interest_after_s: float = 0.01
    #: Silence waits this long for more silence or data to go with.
    silence_after_s: float = 0.02
    #: Repair of lagging interest: first timeout; it adapts to measured round trips.
    lag_after_s: float = 1.0
    #: Whether brokers replace many narrow conjunctions by few wide ones, and from how many on.
    coarsen: bool = False
    coarsen_above: int = 64
    #: Whether covered conjunctions are left out on the way up.
    covering: bool = True
    #: Whether vectors travel once per link and mark, and sufficiency is remembered.
    digests: bool = True
    sufficiency_cache: bool = True

    # -- mesh routing
    #: Whether interest goes only where something is advertised that it meets. Otherwise every
    #: origin advertises everything: routing by subscriptions alone.
    advertisements: bool = True
    #: Advertisements of one origin that are told one by one, and trees that it has for them.
    advertisements_max: int = 1_024
    trees_max: int = 8
    #: Comparisons of interest with advertisements in one step; what is left is compared later, and
    #: counts as wanted until then.
    comparisons_max: int = 8_192
    #: An advertisement that nobody makes any more is withdrawn after this long.
    advertised_for_s: float = 5.0
    #: `fixed`: events stay on their tree. `dynamic`: they take the path that costs least,
    paths: Literal["fixed", "dynamic"] = "dynamic"
    #: by this cost of links.
    cost: Literal["utilisation", "waiting"] = "utilisation"

    # -- patterns
    #: A join point writes this often down how far it has reported,
    pattern_save_s: float = 1.0
    #: and lets time pass this often for what waits for that.
    pattern_look_s: float = 0.1
    #: What another broker does not answer is said again after this long.
    pattern_again_s: float = 1.0
    #: A join point that was moved, or dropped, is remembered for this long.
    pattern_gone_s: float = 600.0
    #: What all join points of a broker try in one step, in the tries of `pattern_tries_max`: some
    #: ten milliseconds. The rest waits for the next step.
    pattern_step_tries: int = 20_000
    #: Matches that one pattern publishes in a second, and all patterns of one client at one broker.
    #: More wait.
    pattern_matches_per_s: int = 1_000
    pattern_client_matches_per_s: int = 5_000
    #: A join point that is placed by cost looks for a better place this often.
    pattern_review_s: float = 10.0

    @property
    def held_back_max(self) -> int:
        """`held_back_bytes_max`, or what holds without it."""
        given = self.held_back_bytes_max
        return HELD_BACK_BYTES_MAX if given is None else given

    def portion(self, work: int, at_most: int = _PORTION_MAX) -> int:
        """How many things of so much work each are done without a pause."""
        return max(1, min(at_most, self.step_work_max // (4 * work)))

    def __post_init__(self) -> None:
        age_s_max = self.log_age_s_max
        if age_s_max is None:
            return
        if not age_s_max > 0:
            raise LocalError(f"log_age_s_max is {age_s_max}; it must be positive, or None")
        if self.retention != "lossy":
            raise LocalError(
                f"log_age_s_max is {age_s_max}, but retention is {self.retention!r}: ticks that"
                " grow old would be forgotten although somebody may need them; set retention to"
                " 'lossy', or log_age_s_max to None"
            )
