"""What can be said to `format("anabranch")`, and what is wrong with it.

Names are those that users of Kafka's source know, where the thing is the same. Spark hands over
texts, and does not care about upper and lower case in names; so these are texts in, values out.
Every mistake is an error that names the option: one that is unknown, misspelt, or makes no sense
here is never passed over.

Everywhere:

    brokers               HOST:PORT of a broker, or several with commas; others are found by them
    ca, certificate, key  files for TLS; plaintext=true goes without, beyond loopback
    client                what the names begin with under which brokers see this query
    patienceSeconds       how long a broker may be away before that is an error (default: 30)

For reading:

    subscription          a filter; only what matches leaves the brokers (default: everything)
    streams               names with commas (default: all, also those that come later)
    startingOffsets       earliest (default for batch), latest (default for streaming), or JSON:
                          {"stream": tick, …}, the first tick to be read
    startingTimestamp     an ISO 8601 time, or nanoseconds since 1970: the first tick logged then or
                          later; in place of startingOffsets
    endingOffsets         batch: latest (default), or JSON: the first tick not to be read
    failOnDataLoss        true (default): ticks that the log no longer has are an error; false: they
                          are passed over, with a warning that names them
    archive               the directory of an archive: what the log no longer has is read from there
    statistics            a file of `anabranch pipeline stats --export`: its attributes are the
                          columns of a read without a schema (default: those of a sample)
    minPartitions         into how many tasks a batch is divided at least
    attributes            columns (default), map or variant: one column for all attributes
    pushdown              batch: true lets Spark hand conditions to the brokers; see the warning in
                          docs/how-to/read-with-spark.md
    maxOffsetsPerTrigger  streaming: ticks, over all streams together, that one batch has at most
    durableSubscription   streaming: the name of a cursor at the brokers, which keeps the log from
                          being forgotten as far as the query has not got
    silenceRows           streaming: true ends each range with a row that has no event, only the
                          time up to which the stream was read; so watermarks move in silence

For writing:

    sinkId                whose batches these are; streaming: needed
    transactionId         which batch a batch write is; batch: needed
    streams               the broker to write to (default: the one at the first address)
    ignoreEnvelope        true: columns that the broker assigns, such as tick, are left out; false
                          (default): they are an error
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Final, Literal

import msgspec

from anabranch.client.options import parse_address
from anabranch.model.errors import EventError, FilterError, LocalError
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.names import check_name

#: What is done with a data source; "read" where nobody knows yet whether it is a stream.
Use = Literal["read", "batch read", "stream read", "batch write", "stream write"]
Offsets = Literal["earliest", "latest"] | dict[str, int]
AttributesAs = Literal["columns", "map", "variant"]

_READ: Final = frozenset[Use]({"read", "batch read", "stream read"})
_WRITE: Final = frozenset[Use]({"batch write", "stream write"})
_BATCH_READ: Final = frozenset[Use]({"read", "batch read"})
_STREAM_READ: Final = frozenset[Use]({"read", "stream read"})
_ALL: Final = _READ | _WRITE
#: Option, in the case in which it is documented → where it makes sense.
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
_KNOWN: Final = {name.lower(): name for name in NAMES}
#: What Spark itself is told in the same place.
_OF_SPARK: Final = frozenset({"checkpointlocation"})
_WORDS: Final[dict[Use, str]] = {
    "read": "reading",
    "batch read": "reading at once",
    "stream read": "reading as a stream",
    "batch write": "writing at once",
    "stream write": "writing as a stream",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: A smaller number of nanoseconds is in the seventies: it was meant to be milliseconds.
_NS_MIN: Final = 10**17
#: Behind `client`, so that connections have names of their own (`reaching.client_name`).
_SUFFIX_BYTES: Final = 32
_EXAMPLE: Final = json.dumps({"stream": 1})


class OptionError(LocalError):
    """An option that cannot be used, and why."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"option {name!r}: {problem}")

    def __reduce__(self) -> "tuple[type[OptionError], tuple[str, str]]":
        return OptionError, (self.name, self.problem)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a source or sink was told, checked."""

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
    #: A file that says which attributes there are.
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


def read_options(given: Mapping[str, str], use: Use | None = None) -> Options:
    """What was said, if it makes sense for this use; `OptionError` otherwise."""
    texts = {name.lower(): text for name, text in given.items()}
    for name in texts:
        _check_known(name, use)
    reading = _Reading(texts)
    found = Options(
        brokers=reading.brokers(),
        ca=reading.text("ca"),
        certificate=reading.text("certificate"),
        key=reading.text("key"),
        plaintext=reading.truth("plaintext", default=False),
        client=reading.name("client", DEFAULT_LIMITS.name_bytes_max - _SUFFIX_BYTES),
        subscription=reading.filter("subscription"),
        streams=reading.names("streams"),
        starting_offsets=reading.offsets("startingOffsets"),
        starting_time_ns=reading.time("startingTimestamp"),
        ending_offsets=reading.end("endingOffsets"),
        fail_on_data_loss=reading.truth("failOnDataLoss", default=True),
        archive=reading.text("archive"),
        statistics=reading.text("statistics"),
        partitions_min=reading.count("minPartitions"),
        attributes=reading.attributes(),
        pushdown=reading.truth("pushdown", default=False),
        offsets_per_trigger_max=reading.count("maxOffsetsPerTrigger"),
        durable_subscription=reading.name("durableSubscription"),
        silence_rows=reading.truth("silenceRows", default=False),
        sink_id=reading.name("sinkId"),
        transaction_id=reading.name("transactionId"),
        ignore_envelope=reading.truth("ignoreEnvelope", default=False),
        patience_s=float(reading.count("patienceSeconds") or 30),
    )
    _check_together(found)
    return found


def _check_known(name: str, use: Use | None) -> None:
    if name == "path":
        raise OptionError(name, "there is no path to a network; say brokers=HOST:PORT")
    if name in _OF_SPARK:
        return
    if name not in _KNOWN:
        raise OptionError(name, f"there is no such option; {_nearest(name)}")
    known = _KNOWN[name]
    if use is not None and use not in _USES[known]:
        fit = ", ".join(words for each, words in _WORDS.items() if each in _USES[known])
        raise OptionError(known, f"it makes no sense for {_WORDS[use]}; it is for {fit}")


def _nearest(name: str) -> str:
    near = get_close_matches(name, _KNOWN, n=1)
    return f"did you mean {_KNOWN[near[0]]}?" if near else f"there is {', '.join(NAMES)}"


def _check_together(options: Options) -> None:
    """Options that contradict each other."""
    if options.starting_time_ns is not None and options.starting_offsets is not None:
        raise OptionError("startingTimestamp", "there is startingOffsets too; give one of them")
    if isinstance(options.starting_offsets, dict) and isinstance(options.ending_offsets, dict):
        for stream, end in options.ending_offsets.items():
            first = options.starting_offsets.get(stream, end)
            if first > end:
                raise OptionError("endingOffsets", f"{stream!r} begins with {first}, after {end}")
    if options.key and not options.certificate:
        raise OptionError("key", "a key needs its certificate; give that too")
    if options.certificate and not options.ca:
        raise OptionError("certificate", "say whom to trust too: ca=FILE")
    if options.plaintext and options.ca:
        raise OptionError("plaintext", "there is ca too, which asks for TLS; give one of them")


class _Reading:
    """Texts by their names in lower case, read one by one."""

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
            raise OptionError(name, f"{self.text(name)!r} names something twice")
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
            raise OptionError("brokers", "say where a broker is: HOST:PORT")
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
            raise OptionError(name, f"{text!r} is no number from 1 to {(1 << 31) - 1}")
        return int(text)

    def attributes(self) -> AttributesAs:
        text = self.text("attributes").lower()
        if text in {"", "columns"}:
            return "columns"
        if text == "map":
            return "map"
        if text == "variant":
            return "variant"
        raise OptionError("attributes", f"{text!r} is none of columns, map, variant")

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
            raise OptionError(name, "nothing ends at the earliest tick; give latest, or ticks")
        return "latest" if found is None else found

    def _ticks(self, name: str, text: str) -> dict[str, int]:
        try:
            found = msgspec.json.decode(text, type=dict[str, int])
        except msgspec.DecodeError as error:
            raise OptionError(
                name, f"{text!r} is neither earliest, latest nor JSON like {_EXAMPLE}: {error}"
            ) from error
        for stream, tick in found.items():
            if not 0 <= tick < 1 << 62:
                raise OptionError(name, f"{stream!r} has no tick {tick}; ticks begin with 1")
        return found

    def time(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if text.isascii() and text.isdecimal():
            if not _NS_MIN <= int(text) < 1 << 63:
                raise OptionError(
                    name, f"{text} are no nanoseconds of our times; give those, or an ISO 8601 time"
                )
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise OptionError(name, f"{text!r} is no time: {error}") from error
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)
        return max((moment - _EPOCH) // timedelta(microseconds=1), 0) * 1_000
