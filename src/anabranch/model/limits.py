"""Every bound of the system, in one value.

Whatever is read from elsewhere, kept, or grown has its bound here, so that memory is a matter of
configuration and not of what somebody sends. `Limits()` holds the defaults; a deployment passes
its own. Sizes of text are in UTF-8 bytes.
"""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds, all inclusive."""

    # -- events
    #: Attributes of one event.
    attributes_max: int = 256
    #: Bytes of an attribute, stream, publisher or destination name, of a content type and of a
    #: correlation id.
    name_bytes_max: int = 255
    #: Bytes of one string value.
    value_bytes_max: int = 65_536
    #: Bytes of the opaque payload.
    payload_bytes_max: int = 4 * 1024 * 1024
    #: Explicit destinations of one event; more than 65,535 are never allowed.
    destinations_max: int = 256
    #: Bytes of one encoded event, everything included.
    event_bytes_max: int = 8 * 1024 * 1024

    # -- filters
    #: Bytes of the text of one filter.
    filter_bytes_max: int = 262_144
    #: Depth of nesting of one filter: parentheses, NOT, arithmetic.
    filter_depth_max: int = 100
    #: Nodes of the tree of one filter.
    filter_nodes_max: int = 50_000
    #: Conjunctions of one filter's normal form.
    conjunctions_max: int = 1_024
    #: Constraints and residues over all conjunctions of one normal form.
    predicates_max: int = 16_384

    # -- patterns
    #: Bytes of the text of one pattern, parts it names, and joins.
    pattern_bytes_max: int = 262_144
    pattern_parts_max: int = 32
    pattern_joins_max: int = 256
    #: Levels of the tree of one pattern, and of parentheses open at any place of its text.
    pattern_depth_max: int = 16
    #: Events of one match; ways to match, where OR leaves a choice.
    pattern_match_events_max: int = 128
    pattern_alternatives_max: int = 64
    #: Events of all ways to match together, one match of each.
    pattern_slots_max: int = 1_024
    #: Seconds of a window, and of the lateness.
    pattern_window_s_max: int = 86_400
    pattern_lateness_s_max: int = 3_600
    #: Patterns that one broker detects.
    patterns_max: int = 1_000
    #: Of these, patterns that one client has defined.
    client_patterns_max: int = 250
    #: Requests about patterns that wait for an answer at one broker, and those of one session.
    pattern_requests_max: int = 1_024
    session_pattern_requests_max: int = 128
    #: Patterns that one broker had, or refused, and remembers; the oldest are forgotten.
    patterns_gone_max: int = 100_000
    #: Events that one detector keeps, and matches that wait in it to become final.
    pattern_events_max: int = 100_000
    pattern_pending_max: int = 100_000
    #: Events and places that are looked at, for one event that comes.
    pattern_tries_max: int = 100_000
    #: Matches of one pattern that end with the same event: the first in the order of
    #: `check.reference`. Part of what a pattern means, so all brokers of a network have the same.
    pattern_matches_max: int = 100

    # -- links and sessions
    #: Bytes of memory that others can make one broker process hold: clients, their TLS, reads of
    #: the log, staging and detectors; `model.limits` divides them.
    memory_bytes_max: int = 512 * 1024 * 1024
    #: Bytes of one frame, without its length in front; room for one event at least.
    frame_bytes_max: int = 16 * 1024 * 1024
    #: Connections of clients to one broker.
    connections_max: int = 10_000
    #: Of these, connections from one host.
    host_connections_max: int = 8_192
    #: Connections to one broker, of clients and neighbours, that have not said yet who they are;
    #: those in a TLS handshake included.
    greetings_max: int = 256
    #: Bytes that may wait to be sent before a link, or a client, counts as full.
    link_waiting_bytes_max: int = 16 * 1024 * 1024
    client_waiting_bytes_max: int = 4 * 1024 * 1024
    #: Fetches that one session may have under way, and bytes of the rows that answer one.
    fetches_max: int = 4
    fetch_bytes_max: int = 4 * 1024 * 1024

    # -- edges
    #: Subscriptions of one edge, those on their way included.
    subscriptions_max: int = 1_000_000
    #: Subscriptions of one client, those of its absent durable ones included.
    client_subscriptions_max: int = 65_536
    #: Bytes of memory that the filters of all subscriptions, advertisements and patterns may take
    #: at one broker, by an estimate; some 29,000 small ones fit.
    subscriptions_bytes_max: int = 160 * 1024 * 1024
    #: Of these, what the filters of one client may take.
    client_subscriptions_bytes_max: int = 120 * 1024 * 1024

    # -- the catalog
    #: Records that could not be read and are kept aside, and their bytes; the oldest go first.
    set_aside_max: int = 1_000
    set_aside_bytes_max: int = 16 * 1024 * 1024

    # -- the matching index
    #: Conjunctions one index holds.
    index_conjunctions_max: int = 100_000_000
    #: Attribute names one index knows.
    index_attributes_max: int = 32_768


#: What is used where no limits are given.
DEFAULT_LIMITS = Limits()


# How `memory_bytes_max` of one broker process is divided.
#
# Others decide how much of some memory a broker uses: clients that send, and that do not read;
# tasks that stage events; subscribers that read the past; patterns that keep events. Each use has a
# share of its own, so that none of them can take the memory of another. Shares are eighths:
#
#     clients 1, TLS of clients 2, reads of the log 1, staging 2, detectors 2
#
# Links to neighbours are counted and not limited by this: `link_waiting_bytes_max` bounds each. So
# are, by options of their own, the ends of logs that are kept in memory. Filters of clients have a
# bound of their own, `subscriptions_bytes_max`, because they stay as long as clients want.
#
# This module keeps no state.


_PARTS = 8


def clients_bytes_max(limits: Limits) -> int:
    """What connections and sessions of clients may hold together."""
    return limits.memory_bytes_max // _PARTS


def tls_bytes_max(limits: Limits) -> int:
    """What the TLS of all clients may take together."""
    return limits.memory_bytes_max * 2 // _PARTS


def reads_bytes_max(limits: Limits) -> int:
    """What reads of the log may hold together."""
    return limits.memory_bytes_max // _PARTS


def staging_bytes_max(limits: Limits) -> int:
    """What staged events may hold together."""
    return limits.memory_bytes_max * 2 // _PARTS


def detectors_bytes_max(limits: Limits) -> int:
    """What join points may keep together."""
    return limits.memory_bytes_max * 2 // _PARTS


_ANY = 1 << 62
#: What was checked when it was published is not checked again: limits may have changed since.
STORED_LIMITS = Limits(
    attributes_max=_ANY,
    name_bytes_max=_ANY,
    value_bytes_max=_ANY,
    payload_bytes_max=_ANY,
    destinations_max=_ANY,
    event_bytes_max=_ANY,
)
