"""All limits of the system in one value.

Everything that is received, stored or grows has its limit here, so that memory use depends on
configuration and not on remote input. `Limits()` holds the defaults; a deployment passes its own.
Sizes of text are in UTF-8 bytes.

The memory of one broker process, `memory_bytes_max`, is divided. Remote peers decide how much of
some memory a broker uses: clients that send or do not read, tasks that stage events, subscribers
that read old events, patterns that store events. Each use has its own share, so that none can
exhaust the memory of another. Shares are eighths:

    clients 1, TLS of clients 2, reads of the log 1, staging 2, detectors 2

Links to neighbours are counted but not limited by this: `link_waiting_bytes_max` bounds each of
them. The tails of logs that are cached in memory have their own options. Filters of clients have
their own limit, `subscriptions_bytes_max`, because they stay as long as the clients want.
"""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Upper limits, all inclusive."""

    # -- events
    #: Attributes per event.
    attributes_max: int = 256
    #: Bytes of an attribute, stream, publisher or destination name, of a content type and of a
    #: correlation id.
    name_bytes_max: int = 255
    #: Bytes per string value.
    value_bytes_max: int = 65_536
    #: Bytes of the opaque payload.
    payload_bytes_max: int = 4 * 1024 * 1024
    #: Explicit destinations per event; never more than 65,535.
    destinations_max: int = 256
    #: Bytes per encoded event, everything included.
    event_bytes_max: int = 8 * 1024 * 1024

    # -- filters
    #: Bytes of the text of a filter.
    filter_bytes_max: int = 262_144
    #: Nesting depth of a filter: parentheses, NOT, arithmetic.
    filter_depth_max: int = 100
    #: Nodes in the tree of a filter.
    filter_nodes_max: int = 50_000
    #: Conjunctions in the normal form of a filter.
    conjunctions_max: int = 1_024
    #: Constraints and residues in all conjunctions of a normal form.
    predicates_max: int = 16_384
    #: Weight of the LIKE conditions of a filter, or of all parts of a pattern, that search a text
    #: (`language.like.search_weight`).
    search_weight_max: int = 512

    # -- patterns
    #: Bytes of the text of a pattern, its named parts, and its joins.
    pattern_bytes_max: int = 262_144
    pattern_parts_max: int = 32
    pattern_joins_max: int = 256
    #: Levels in the tree of a pattern, and of nested parentheses in its text.
    pattern_depth_max: int = 16
    #: Events per match; alternatives to match, where OR leaves a choice.
    pattern_match_events_max: int = 128
    pattern_alternatives_max: int = 64
    #: Events of all alternatives together, one match of each.
    pattern_slots_max: int = 1_024
    #: Seconds of a window, and of lateness.
    pattern_window_s_max: int = 86_400
    pattern_lateness_s_max: int = 3_600
    #: Patterns that one broker detects.
    patterns_max: int = 1_000
    #: Of these, patterns defined by one client.
    client_patterns_max: int = 250
    #: Pending pattern requests at one broker, and of one session.
    pattern_requests_max: int = 1_024
    session_pattern_requests_max: int = 128
    #: Former and refused patterns that one broker remembers; the oldest are forgotten first.
    patterns_gone_max: int = 100_000
    #: Events stored by one detector, and its matches that are not final yet.
    pattern_events_max: int = 100_000
    pattern_pending_max: int = 100_000
    #: Events and positions examined per arriving event.
    pattern_tries_max: int = 100_000
    #: Matches of one pattern that end with the same event: the first in the order of
    #: `check.reference`. This is part of the meaning of a pattern, so all brokers of a network use
    #: the same value.
    pattern_matches_max: int = 100

    # -- links and sessions
    #: Bytes of memory that remote peers can make one broker process hold: clients, their TLS, reads
    #: of the log, staging and detectors (see the top of this module).
    memory_bytes_max: int = 512 * 1024 * 1024
    #: Bytes per frame, without the length prefix; must hold at least one event.
    frame_bytes_max: int = 16 * 1024 * 1024
    #: Client connections per broker.
    connections_max: int = 10_000
    #: Of these, connections from one host.
    host_connections_max: int = 8_192
    #: Connections to one broker, from clients and neighbours, that have not completed the
    #: handshake, TLS included.
    greetings_max: int = 256
    #: Bytes in the send buffer at which a link, or a client, counts as full.
    link_waiting_bytes_max: int = 16 * 1024 * 1024
    client_waiting_bytes_max: int = 4 * 1024 * 1024
    #: Fetches in flight per session, and bytes of rows per answer.
    fetches_max: int = 4
    fetch_bytes_max: int = 4 * 1024 * 1024

    # -- edges
    #: Subscriptions per edge, pending ones included.
    subscriptions_max: int = 1_000_000
    #: Subscriptions per client, those of disconnected durable subscriptions included.
    client_subscriptions_max: int = 65_536
    #: Estimated bytes of memory for the filters of all subscriptions, advertisements and patterns
    #: at one broker; room for about 29,000 small ones.
    subscriptions_bytes_max: int = 160 * 1024 * 1024
    #: Of these, bytes for the filters of one client.
    client_subscriptions_bytes_max: int = 120 * 1024 * 1024

    # -- the catalog
    #: Unreadable records that are quarantined, and their bytes; the oldest are removed first.
    set_aside_max: int = 1_000
    set_aside_bytes_max: int = 16 * 1024 * 1024

    # -- the matching index
    #: Conjunctions per index.
    index_conjunctions_max: int = 100_000_000
    #: Attribute names per index.
    index_attributes_max: int = 32_768


#: The default limits.
DEFAULT_LIMITS = Limits()


_SHARES = 8


def clients_bytes_max(limits: Limits) -> int:
    return limits.memory_bytes_max // _SHARES


def tls_bytes_max(limits: Limits) -> int:
    return limits.memory_bytes_max * 2 // _SHARES


def reads_bytes_max(limits: Limits) -> int:
    return limits.memory_bytes_max // _SHARES


def staging_bytes_max(limits: Limits) -> int:
    return limits.memory_bytes_max * 2 // _SHARES


def detectors_bytes_max(limits: Limits) -> int:
    return limits.memory_bytes_max * 2 // _SHARES


_ANY = 1 << 62
#: Stored events were checked when they were published, under limits that may have changed since.
STORED_LIMITS = Limits(
    attributes_max=_ANY,
    name_bytes_max=_ANY,
    value_bytes_max=_ANY,
    payload_bytes_max=_ANY,
    destinations_max=_ANY,
    event_bytes_max=_ANY,
)
