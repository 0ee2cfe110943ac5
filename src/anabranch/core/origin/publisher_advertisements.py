"""Advertisements: the filters that the publishers at one origin promise to stay within.

Sessions advertise filters; an origin announces the union, and routing may use it to keep interest
away from origins that cannot match it.

Rules

1. An event that matches none of the filters of its session, if the session has advertised any, is
   refused finally.
2. A session that publishes without advertising counts as advertising everything from its first
   event on. So do batches, which have no lasting session.
3. A filter that no session advertises any longer is withdrawn after `advertised_for_s`, so that a
   publisher that reconnects finds it unchanged.
4. An advertisement that no event can match is ignored; one that is not a filter violates the
   protocol, and then nothing changes.
5. Announced filters can be parsed wherever the same limits hold. A filter whose normal form, which
   is sent to others, exceeds the limits is announced as everything; its session is still bound by
   it.
6. Events are checked one frame at a time. A session with many filters has an index (`any_of`); at
   most `_INDEXES_MAX` sessions have one, those that published most recently.
7. Advertisements are charged to their client (`core.filter_memory`). A session that exceeds a quota
   is closed, and the reason names the quota.
8. A session advertises at most `ADVERTISEMENTS_MAX` filters with `ADVERTISED_CHARACTERS_MAX`
   characters in total. Long ones are parsed ahead (`model.read_ahead`), and processed here in
   slices; events are also checked in slices if that takes long.

State: volatile. Clients repeat their advertisements on every new connection.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.origin.publishers import PublishRefusal
from anabranch.core.part_requests import ChangeAdvertisements, PartRequest
from anabranch.core.routing.contract import WorkDone
from anabranch.matching.any_of import AnyOf
from anabranch.model.client_frames import (
    ADVERTISED_CHARACTERS_MAX,
    ADVERTISEMENTS_MAX,
    INVALID_EVENT,
)
from anabranch.model.encoding import Envelope
from anabranch.model.errors import FilterError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.read_ahead import FAILURE_BYTES, ReadAhead, Reading

EVERYTHING = "TRUE"
#: The pseudo session of batches.
_BATCHES = 0
#: An index takes a quarter of a megabyte, and more with more filters.
_INDEXES_MAX = 256
_NOTHING_REFUSED: Mapping[int, PublishRefusal] = {}
#: Characters that are parsed, and the cost of events that are checked, without a pause.
_SLICE_CHARACTERS = 1_024
_SLICE_WORK = 1_000
#: The cost of processing a parsed advertisement; characters per microsecond of parsing.
_TAKE_WORK = 10
_READ_CHARACTERS = 1


def refusal_of(texts: Sequence[str]) -> str:
    """Why a session cannot advertise this many or this long filters; "" if it can (rule 8)."""
    if len(texts) > ADVERTISEMENTS_MAX:
        return f"{len(texts)} advertisements; a session may have at most {ADVERTISEMENTS_MAX}"
    characters = sum(map(len, texts))
    if characters > ADVERTISED_CHARACTERS_MAX:
        return (
            f"advertisements of {characters} characters; a session may have at most"
            f" {ADVERTISED_CHARACTERS_MAX} in total, so advertise fewer and wider filters"
        )
    return ""


class ParsedAdvertisement(NamedTuple):
    """A parsed advertisement."""

    #: With its normal form, and compiled for matching.
    filter: Filter
    #: The text that is announced to others (rule 5).
    announced: str
    #: Its estimated memory in a broker.
    cost: FilterCost


_Key = tuple[str, Limits]
_read_ahead: ReadAhead[_Key, ParsedAdvertisement | FilterError] = ReadAhead("advertisement")


def _read(text: str, limits: Limits) -> ParsedAdvertisement | FilterError:
    try:
        filter = Filter.parse(text, limits)
        _ = filter.conjunctions
    except FilterError as error:
        return error.with_traceback(None)
    filter.compile()
    cost = filter.cost(text)
    normal = str(filter)
    if normal != text:
        try:
            Filter.parse(normal, limits)
        except FilterError:
            return ParsedAdvertisement(filter, EVERYTHING, cost)
    # Parts of this broker that receive the text need not parse it again.
    filter.remember(normal)
    return ParsedAdvertisement(filter, normal, cost)


def advertisement_reading(
    text: str, limits: Limits
) -> Reading[_Key, ParsedAdvertisement | FilterError]:

    def make() -> tuple[ParsedAdvertisement | FilterError, int]:
        made = _read_ahead.find((text, limits)) or _read(text, limits)
        if isinstance(made, FilterError):
            return made, len(text) + FAILURE_BYTES
        return made, made.cost.bytes

    return Reading(_read_ahead, (text, limits), text, make)


class PublisherAdvertisements:
    """The advertisements of one origin. See the rules at the top of this module."""

    __slots__ = (
        "_advertised",
        "_charged",
        "_expiring",
        "_held",
        "_holders",
        "_indexed",
        "_limits",
        "_linger_s",
        "_memory",
    )

    def __init__(
        self, options: Options, limits: Limits, memory: FilterMemory | None = None
    ) -> None:
        self._limits = limits
        self._memory = memory or FilterMemory(limits)
        #: Session → its client, and the charge for its advertisements.
        self._charged: dict[int, tuple[str, FilterCost]] = {}
        self._linger_s = options.advertised_for_s
        #: Session → its filters; absent if it has advertised none.
        self._advertised: dict[int, AnyOf] = {}
        #: Sessions whose filters have an index, least recently used first.
        self._indexed: OrderedDict[int, None] = OrderedDict()
        #: Announced filters: text → the sessions that advertise it, and the inverse,
        self._holders: dict[str, set[int]] = {}
        self._held: dict[int, tuple[str, ...]] = {}
        #: and texts that no session advertises → when they are withdrawn, in that order. A text
        #: that is advertised again is removed from here.
        self._expiring: OrderedDict[str, float] = OrderedDict()

    def replace(
        self, now: float, session: int, texts: Sequence[str], client: str = ""
    ) -> Iterable[PartRequest]:
        """Replace the advertisements of a session; `RemoteError` if they are not acceptable."""
        if refusal := refusal_of(texts):
            raise RemoteError(refusal)
        work = self._replace(now, session, dict.fromkeys(texts), client)
        if sum(map(len, texts)) > _SLICE_CHARACTERS:
            return work
        return [request for request in work if not isinstance(request, WorkDone)]

    def _replace(
        self, now: float, session: int, texts: Iterable[str], client: str
    ) -> Iterator[PartRequest]:
        # Take all filters that were parsed ahead now, because they may be evicted later.
        limits = self._limits
        found = [(text, _read_ahead.find((text, limits))) for text in texts]
        satisfiable: list[ParsedAdvertisement] = []
        for text, ahead in found:
            read = ahead or _read(text, limits)
            if isinstance(read, FilterError):
                raise RemoteError(f"an advertisement is not a filter: {read.message}") from read
            if read.filter.conjunctions:
                satisfiable.append(read)
            yield WorkDone(_TAKE_WORK + (0 if ahead else len(text) // _READ_CHARACTERS))
        if session >= 0:
            # The filters of a join point are charged with its pattern.
            self._charge(session, client, [advertisement.cost for advertisement in satisfiable])
        self._release(now, session)
        self._forget(session)
        if found:
            filters = [advertisement.filter for advertisement in satisfiable]
            self._advertised[session] = AnyOf(filters, self._limits)
        yield from self._hold(session, [advertisement.announced for advertisement in satisfiable])

    def is_long(self, session: int, events: int) -> bool:
        """Whether this many events of a session must be checked in slices."""
        advertised = self._advertised.get(session)
        return advertised is not None and advertised.work_of(events) > _SLICE_WORK

    def refusals(
        self, session: int, envelopes: Sequence[Envelope]
    ) -> Generator[WorkDone, None, Mapping[int, PublishRefusal]]:
        """Position → refusal, for all events that the session did not advertise."""
        advertised = self._advertised.get(session)
        if advertised is None:
            return _NOTHING_REFUSED
        matching = advertised.looking(envelopes)
        while True:
            try:
                yield WorkDone(next(matching))
            except StopIteration as end:
                outside: list[int] = end.value
                break
        if advertised.is_indexed:
            self._use_index(session)
        if not outside:
            return _NOTHING_REFUSED
        reason = f"the event does not match the publisher's advertisements, which are {advertised}"
        text = f"{reason}; advertise more, or change the event"
        refusal = PublishRefusal(text, is_final=True, code=INVALID_EVENT)
        return dict.fromkeys(outside, refusal)

    def published(self, session: int) -> list[PartRequest]:
        """A session publishes; without advertisements it may publish anything (rule 2)."""
        is_known = session in self._advertised or session in self._held
        return [] if is_known else self._hold(session, (EVERYTHING,))

    def batch_written(self, now: float) -> list[PartRequest]:
        """Advertise everything for a batch (rule 2)."""
        requests = self._hold(_BATCHES, (EVERYTHING,))
        self._release(now, _BATCHES)
        return requests

    def _charge(self, session: int, client: str, costs: Sequence[FilterCost]) -> None:
        """Replace the charge of a session (rule 7)."""
        names = dict.fromkeys(name for cost in costs for name in cost.names)
        # Less than for subscriptions: an index exists only where many events are published.
        total = FilterCost(sum(cost.bytes for cost in costs) * 2 // 3, tuple(names))
        before = self._charged.pop(session, None)
        if before is not None:
            self._memory.release(*before)
        reason = self._memory.refusal(client, total) if costs else ""
        if reason:
            if before is not None:
                self._memory.charge(*before)
                self._charged[session] = before
            raise RemoteError(f"{len(costs)} advertisements exceed a quota: {reason}")
        if costs:
            self._memory.charge(client, total)
            self._charged[session] = client, total

    def session_closed(self, now: float, session: int) -> None:
        self._charge(session, "", ())
        self._forget(session)
        self._release(now, session)

    def time_passed(self, now: float) -> list[PartRequest]:
        """Withdraw filters that no session has advertised for `advertised_for_s`."""
        expired = []
        while self._expiring:
            text, due = next(iter(self._expiring.items()))
            if due > now:
                break
            del self._expiring[text]
            expired.append(text)
        return [ChangeAdvertisements((), tuple(expired))] if expired else []

    def next_deadline(self) -> float | None:
        return next(iter(self._expiring.values()), None)

    # -- announced filters ------------------------------------------------------------------------

    def _hold(self, session: int, texts: Iterable[str]) -> list[PartRequest]:
        """Set the announced filters of a session that has none."""
        held = tuple(dict.fromkeys(texts))
        if held:
            self._held[session] = held
        added = []
        for text in held:
            if text not in self._holders and text not in self._expiring:
                added.append(text)
            self._expiring.pop(text, None)
            self._holders.setdefault(text, set()).add(session)
        return [ChangeAdvertisements(tuple(added), ())] if added else []

    def _release(self, now: float, session: int) -> None:
        for text in self._held.pop(session, ()):
            holders = self._holders[text]
            holders.discard(session)
            if not holders:
                del self._holders[text]
                self._expiring[text] = now + self._linger_s

    def _forget(self, session: int) -> None:
        self._advertised.pop(session, None)
        self._indexed.pop(session, None)

    def _use_index(self, session: int) -> None:
        """Record the use of an index; the least recently used one may be evicted."""
        self._indexed[session] = None
        self._indexed.move_to_end(session)
        if len(self._indexed) > _INDEXES_MAX:
            least_recent, _ = self._indexed.popitem(last=False)
            self._advertised[least_recent].forget_index()
