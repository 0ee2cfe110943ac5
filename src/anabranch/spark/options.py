"""Options of `format("anabranch")` and their validation.

Option names follow Spark's Kafka source where the meaning is the same. Spark passes options as
strings and ignores the case of their names; this module converts the strings to typed values. It
rejects every unknown, misspelt or inapplicable option with an error that names the option.

Common options:

    brokers               HOST:PORT of a broker, or a comma-separated list; the rest of the network
                          is discovered from there
    ca, certificate, key  TLS files; plaintext=true disables TLS for addresses beyond loopback
    client                prefix of the client names under which brokers see this query
    patienceSeconds       how long a broker may be unreachable before the query fails (default: 30)

Read options:

    subscription          filter; brokers send only matching events (default: all events);
                          `filter` is a synonym
    streams               comma-separated names (default: all, including streams added later)
    startingOffsets       earliest (default for batch), latest (default for streaming), or JSON
                          {"stream": tick, …} with the first tick to read
    startingTimestamp     ISO 8601 time, or nanoseconds since 1970: start at the first tick logged
                          at or after this time; replaces startingOffsets
    endingOffsets         batch: latest (default), or JSON with the first tick not to read
    failOnDataLoss        true (default): fail if the log no longer has the ticks; false: skip them
                          and log a warning that names them
    archive               directory of an archive; ticks that the log no longer has are read from it
    statistics            file written by `anabranch pipeline stats --export`; its attributes become
                          the columns of a read without a schema (default: those of a sample)
    minPartitions         minimum number of tasks per batch
    attributes            columns (default), or map or variant: one column for all attributes
    pushdown              batch: true lets Spark push conditions down to the brokers; see the
                          warning in docs/how-to/read-with-spark.md
    maxOffsetsPerTrigger  streaming: maximum ticks per micro-batch, over all streams
    durableSubscription   streaming: name of a cursor at the brokers; the log retains events that
                          the query has not read yet
    silenceRows           streaming: true ends each range with a row that holds no event, only the
                          time up to which the stream was read, so that watermarks advance while a
                          stream is silent

Write options:

    sinkId                name of the sink that numbers the batches; streaming: required
    transactionId         identity of a batch write; batch: required
    streams               broker to write to (default: the one at the first address)
    ignoreEnvelope        true: leave out columns that the broker assigns, such as tick; false
                          (default, except for tables): reject them

Tables of Spark SQL: `CREATE TABLE t USING anabranch OPTIONS (…)` passes the options once, among the
properties of the table, to ask for its columns. A query of the table gets only its own options,
`t WITH (…)`. So the options of a table are kept in the metadata of its first column, and a query
uses those that apply to it, unless it names brokers itself. They are lost if the table is created
with a list of columns, because Spark then does not ask. A write to a table leaves out the columns
that the broker assigns, because the default columns include them.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, Literal

import msgspec

from anabranch.client.options import parse_address
from anabranch.model.errors import EventError, FilterError, LocalError
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.names import check_name
from anabranch.model.timestamps import nanoseconds_of

#: How a data source is used; "read" while it is undecided whether the read is batch or streaming.
Use = Literal["read", "batch read", "stream read", "batch write", "stream write"]
Offsets = Literal["earliest", "latest"] | dict[str, int]
AttributesAs = Literal["columns", "map", "variant"]

_READ: Final = frozenset[Use]({"read", "batch read", "stream read"})
_WRITE: Final = frozenset[Use]({"batch write", "stream write"})
_BATCH_READ: Final = frozenset[Use]({"read", "batch read"})
_STREAM_READ: Final = frozenset[Use]({"read", "stream read"})
_ALL: Final = _READ | _WRITE
#: Option, in its documented spelling → uses that accept it.
_USES: Final[dict[str, frozenset[Use]]] = {
    "brokers": _ALL,
    "ca": _ALL,
    "certificate": _ALL,
    "key": _ALL,
    "plaintext": _ALL,
    "client": _ALL,
    "patienceSeconds": _ALL,
    "subscription": _READ,
    "streams": _ALL,
    "startingOffsets": _READ,
    "startingTimestamp": _READ,
    "endingOffsets": _BATCH_READ,
    "failOnDataLoss": _READ,
    "archive": _READ,
    "statistics": _READ,
    "minPartitions": _READ,
    "attributes": _READ,
    "pushdown": _BATCH_READ,
    "maxOffsetsPerTrigger": _STREAM_READ,
    "durableSubscription": _STREAM_READ,
    "silenceRows": _STREAM_READ,
    "sinkId": _WRITE,
    "transactionId": frozenset[Use]({"batch write"}),
    "ignoreEnvelope": _WRITE,
}
NAMES: Final = tuple(_USES)
#: Other names of options.
_SYNONYMS: Final = {"filter": "subscription"}
#: In the metadata of a table's first column: the options of the table.
TABLE_OPTIONS: Final = "anabranch.options"
#: Precedes an option among the properties of a table.
_TABLE_PREFIX: Final = "option."
_KNOWN: Final = {name.lower(): name for name in NAMES}
#: Options that Spark itself reads from the same map.
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation"})
_USE_NAMES: Final[dict[Use, str]] = {
    "read": "reads",
    "batch read": "batch reads",
    "stream read": "streaming reads",
    "batch write": "batch writes",
    "stream write": "streaming writes",
}
#: A smaller number of nanoseconds is a time in the 1970s; it was probably meant as milliseconds.
_NS_MIN: Final = 10**17
#: Reserved for the suffix that makes client names unique (`broker_access.client_name`).
_SUFFIX_BYTES: Final = 32
_EXAMPLE: Final = json.dumps({"stream": 1})


class OptionError(LocalError):
    """An option with an invalid value, and why it is invalid."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"option {name!r}: {problem}")

    def __reduce__(self) -> "tuple[type[OptionError], tuple[str, str]]":
        return OptionError, (self.name, self.problem)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Validated options of a source or sink."""

    brokers: tuple[str, ...]
    ca: str = ""
    certificate: str = ""
    key: str = ""
    plaintext: bool = False
    client: str = ""
    subscription: str = ""
    streams: tuple[str, ...] = ()
    starting_offsets: Offsets | None = None
    starting_time_ns: int | None = None
    ending_offsets: Offsets = "latest"
    fail_on_data_loss: bool = True
    archive: str = ""
    #: A statistics file that lists the attributes.
    statistics: str = ""
    partitions_min: int = 0
    attributes: AttributesAs = "columns"
    pushdown: bool = False
    offsets_per_trigger_max: int = 0
    durable_subscription: str = ""
    silence_rows: bool = False
    sink_id: str = ""
    transaction_id: str = ""
    ignore_envelope: bool = False
    patience_s: float = 30.0


def table_options(properties: Mapping[str, str]) -> dict[str, str] | None:
    """The options among the properties of a table; None if these are plain options."""
    found = {
        name.removeprefix(_TABLE_PREFIX): text
        for name, text in properties.items()
        if name.startswith(_TABLE_PREFIX)
    }
    return found if found or {"owner", "provider"} <= properties.keys() else None


def with_table_options(
    given: Mapping[str, str], kept: Mapping[str, str] | None, use: Use
) -> Mapping[str, str]:
    """The options of a query of a table: its own, and those of the table that apply."""
    own = _by_name(given)
    if kept is None or "brokers" in own:
        return own
    fit = {name: text for name, text in _by_name(kept).items() if use in _USES[_KNOWN[name]]}
    return ({"ignoreenvelope": "true"} if use in _WRITE else {}) | fit | own


def _by_name(given: Mapping[str, str]) -> dict[str, str]:
    """Options by their lower-case names, without synonyms."""
    texts = {name.lower(): text for name, text in given.items()}
    for synonym, name in _SYNONYMS.items():
        if synonym in texts:
            text = texts.pop(synonym)
            if texts.setdefault(name, text).strip() != text.strip():
                raise OptionError(synonym, f"differs from {name}, its synonym; set only one")
    return texts


def read_options(given: Mapping[str, str], use: Use | None = None) -> Options:
    """Parse and validate options for one use. Raises `OptionError`."""
    texts = _by_name(given)
    for name in texts:
        _check_known(name, use)
    parser = _Parser(texts)
    found = Options(
        brokers=parser.brokers(),
        ca=parser.text("ca"),
        certificate=parser.text("certificate"),
        key=parser.text("key"),
        plaintext=parser.truth("plaintext", default=False),
        client=parser.name("client", DEFAULT_LIMITS.name_bytes_max - _SUFFIX_BYTES),
        subscription=parser.filter("subscription"),
        streams=parser.names("streams"),
        starting_offsets=parser.offsets("startingOffsets"),
        starting_time_ns=parser.time("startingTimestamp"),
        ending_offsets=parser.end("endingOffsets"),
        fail_on_data_loss=parser.truth("failOnDataLoss", default=True),
        archive=parser.text("archive"),
        statistics=parser.text("statistics"),
        partitions_min=parser.count("minPartitions"),
        attributes=parser.attributes(),
        pushdown=parser.truth("pushdown", default=False),
        offsets_per_trigger_max=parser.count("maxOffsetsPerTrigger"),
        durable_subscription=parser.name("durableSubscription"),
        silence_rows=parser.truth("silenceRows", default=False),
        sink_id=parser.name("sinkId"),
        transaction_id=parser.name("transactionId"),
        ignore_envelope=parser.truth("ignoreEnvelope", default=False),
        patience_s=float(parser.count("patienceSeconds") or 30),
    )
    _check_conflicts(found)
    return found


def _check_known(name: str, use: Use | None) -> None:
    if name == "path":
        raise OptionError(name, "a network has no path; set brokers=HOST:PORT")
    if name in _SPARK_OPTIONS:
        return
    if name not in _KNOWN:
        raise OptionError(name, f"unknown option; {_nearest(name)}")
    known = _KNOWN[name]
    if use is not None and use not in _USES[known]:
        fit = ", ".join(text for other, text in _USE_NAMES.items() if other in _USES[known])
        raise OptionError(known, f"not applicable to {_USE_NAMES[use]}; it applies to {fit}")


def _nearest(name: str) -> str:
    names = _KNOWN | {synonym: synonym for synonym in _SYNONYMS}
    near = get_close_matches(name, names, n=1)
    return f"did you mean {names[near[0]]}?" if near else f"known options: {', '.join(NAMES)}"


def _check_conflicts(options: Options) -> None:
    if options.starting_time_ns is not None and options.starting_offsets is not None:
        raise OptionError("startingTimestamp", "conflicts with startingOffsets; set only one")
    if isinstance(options.starting_offsets, dict) and isinstance(options.ending_offsets, dict):
        for stream, end in options.ending_offsets.items():
            first = options.starting_offsets.get(stream, end)
            if first > end:
                raise OptionError("endingOffsets", f"{stream!r} starts at {first}, after {end}")
    if options.key and not options.certificate:
        raise OptionError("key", "a key needs its certificate; set certificate too")
    if options.certificate and not options.ca:
        raise OptionError("certificate", "needs a trusted authority; set ca=FILE too")
    if options.plaintext and options.ca:
        raise OptionError("plaintext", "conflicts with ca, which enables TLS; set only one")


class _Parser:
    """Parses option values, keyed by lower-case name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def text(self, name: str) -> str:
        return self._texts.get(name.lower(), "").strip()

    def name(self, name: str, bytes_max: int = DEFAULT_LIMITS.name_bytes_max) -> str:
        text = self.text(name)
        self._check_name(name, text, bytes_max)
        return text

    def names(self, name: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in self.text(name).split(",") if part.strip())
        for part in found:
            self._check_name(name, part)
        if len(set(found)) < len(found):
            raise OptionError(name, f"{self.text(name)!r} contains a duplicate")
        return found

    def _check_name(
        self, name: str, text: str, bytes_max: int = DEFAULT_LIMITS.name_bytes_max
    ) -> None:
        if text:
            try:
                check_name(text, "it", bytes_max)
            except EventError as error:
                raise OptionError(name, str(error)) from error

    def brokers(self) -> tuple[str, ...]:
        found = self.names("brokers")
        if not found:
            raise OptionError(
                "brokers",
                "missing; set the address of a broker as HOST:PORT (for a table of Spark SQL that"
                " was created with a list of columns: t WITH (brokers = 'HOST:PORT'))",
            )
        for place in found:
            try:
                parse_address(place)
            except LocalError as error:
                raise OptionError("brokers", str(error)) from error
        return found

    def filter(self, name: str) -> str:
        text = self.text(name)
        if not text:
            return ""
        try:
            Filter.parse(text)
        except FilterError as error:
            raise OptionError(name, str(error)) from error
        return text

    def truth(self, name: str, *, default: bool) -> bool:
        text = self.text(name).lower()
        if text in {"true", "false"}:
            return text == "true"
        if text:
            raise OptionError(name, f"{text!r} is neither true nor false")
        return default

    def count(self, name: str) -> int:
        text = self.text(name)
        if not text:
            return 0
        if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) < 1 << 31:
            raise OptionError(name, f"{text!r} is not a number from 1 to {(1 << 31) - 1}")
        return int(text)

    def attributes(self) -> AttributesAs:
        text = self.text("attributes").lower()
        if text in {"", "columns"}:
            return "columns"
        if text == "map":
            return "map"
        if text == "variant":
            return "variant"
        raise OptionError("attributes", f"{text!r} is not one of columns, map, variant")

    def offsets(self, name: str) -> Offsets | None:
        text = self.text(name)
        if not text:
            return None
        if text.lower() == "earliest":
            return "earliest"
        if text.lower() == "latest":
            return "latest"
        return self._ticks(name, text)

    def end(self, name: str) -> Offsets:
        found = self.offsets(name)
        if found == "earliest":
            raise OptionError(name, "a read cannot end at earliest; set latest or ticks")
        return "latest" if found is None else found

    def _ticks(self, name: str, text: str) -> dict[str, int]:
        try:
            found = msgspec.json.decode(text, type=dict[str, int])
        except msgspec.DecodeError as error:
            raise OptionError(
                name, f"{text!r} is not earliest, latest or JSON like {_EXAMPLE}: {error}"
            ) from error
        for stream, tick in found.items():
            if not 0 <= tick < 1 << 62:
                raise OptionError(name, f"{stream!r}: invalid tick {tick}; ticks start at 1")
        return found

    def time(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if text.isascii() and text.isdecimal():
            if not _NS_MIN <= int(text) < 1 << 63:
                raise OptionError(
                    name, f"{text} is not a plausible time in nanoseconds; use ISO 8601 instead"
                )
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise OptionError(name, f"{text!r} is not a time: {error}") from error
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)
        return max(nanoseconds_of(moment), 0)
