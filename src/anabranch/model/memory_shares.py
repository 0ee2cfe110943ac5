"""How `memory_bytes_max` of one broker process is divided.

Others decide how much of some memory a broker uses: clients that send, and that do not read;
tasks that stage events; subscribers that read the past; patterns that keep events. Each use has a
share of its own, so that none of them can take the memory of another. Shares are sixths:

    clients      1/6   frames that are not complete, frames that wait, answers that wait to be
                       written; beyond it the client that holds most is cut (`node.memory_budget`)
    reads        1/6   reads of the log under way, for nacks, replays and fetches; what would need
                       another one waits, or is asked for again (`core.history`, `node.fetching`)
    staging      2/6   events that are staged and not committed; further chunks are refused as busy
                       (`core.tokens`)
    detectors    2/6   events that join points keep; further ones are refused, and counted as
                       overflows (`core.patterns.kept_bytes`)

Links to neighbours are counted and not limited by this: `link_waiting_bytes_max` bounds each. So
are, by options of their own, the ends of logs that are kept in memory.

This module keeps no state.
"""

from anabranch.model.limits import Limits

_PARTS = 6


def clients_bytes_max(limits: Limits) -> int:
    """What connections and sessions of clients may hold together."""
    return limits.memory_bytes_max // _PARTS


def reads_bytes_max(limits: Limits) -> int:
    """What reads of the log may hold together."""
    return limits.memory_bytes_max // _PARTS


def staging_bytes_max(limits: Limits) -> int:
    """What staged events may hold together."""
    return limits.memory_bytes_max * 2 // _PARTS


def detectors_bytes_max(limits: Limits) -> int:
    """What join points may keep together."""
    return limits.memory_bytes_max * 2 // _PARTS
