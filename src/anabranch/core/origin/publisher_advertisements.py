"""Offers: what the publishers at one origin say that they will publish.

Sessions advertise filters; an origin offers all of them together, and routing may use that to leave
the origin out of what it cannot match. Rules:

1. An event of a session that has advertised anything, and that matches none of it, is refused for
   ever.
2. A session that publishes without having advertised counts as advertising everything, from its
   first event on. So does whoever writes batches: it has no session that lasts.
3. What nobody advertises any more is withdrawn after `advertised_for_s`, so that a publisher whose
   connection broke finds it unchanged.
4. An advertisement that no event can match is none; one that is no filter breaks the protocol, and
   then nothing has changed.
5. What is offered can be read wherever the same limits hold. A filter whose normal text, as it is
   told to others, exceeds them is offered as everything; its session is held to it nevertheless.
6. Events are looked at a frame at a time. A session that advertises much has an index for that
   (`any_of`); as many sessions as `_INDEXES_MAX` do, those that published last.
7. What a session advertises is charged to its client (`core.filter_memory`). A session that
   advertises more than fits is cut, and told which quota that is.
8. A session advertises `ADVERTISEMENTS_MAX` filters at most, of `ADVERTISED_CHARACTERS_MAX`
   characters together. Long ones are read ahead (`model.read_ahead`), and here in slices; so are
   events looked at where that takes long.

State: volatile. Clients say it again on every new connection.
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
from anabranch.model.client_frames import ADVERTISED_CHARACTERS_MAX, ADVERTISEMENTS_MAX
from anabranch.model.encoding import Envelope
from anabranch.model.errors import FilterError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.read_ahead import FAILURE_BYTES, ReadAhead, Reading

EVERYTHING = "TRUE"
#: Who holds what batches need.
_BATCHES = 0
#: Each takes a quarter of a megabyte, and more with more filters.
_INDEXES_MAX = 256
_NOTHING_REFUSED: Mapping[int, PublishRefusal] = {}
#: Characters that are read at once, and events that are looked at at once, by what that costs.
_AT_ONCE_CHARACTERS = 1_024
_AT_ONCE_WORK = 1_000
#: What it costs to take an advertisement that was read; how many characters cost a microsecond if
#: it was not.
_TAKE_WORK = 10
_READ_CHARACTERS = 1


def refusal_of(texts: Sequence[str]) -> str:
    """Why a session cannot advertise this, as far as its size tells; "" if it can (rule 8)."""
    if len(texts) > ADVERTISEMENTS_MAX:
        return f"{len(texts)} advertisements; a session has at most {ADVERTISEMENTS_MAX}"
    characters = sum(map(len, texts))
    if characters > ADVERTISED_CHARACTERS_MAX:
        return (
            f"advertisements of {characters} characters; those of a session have at most"
            f" {ADVERTISED_CHARACTERS_MAX} together, so advertise fewer and wider filters"
        )
    return ""


class ReadAdvertisement(NamedTuple):
    """An advertisement that was read."""

    #: With its normal form, and ready to be asked about events.
    filter: Filter
    #: What others are told (rule 5).
    offered: str
    #: What it makes a broker hold, about.
    cost: FilterCost


_Key = tuple[str, Limits]
_read_ahead: ReadAhead[_Key, ReadAdvertisement | FilterError] = ReadAhead("advertisement")


def _read(text: str, limits: Limits) -> ReadAdvertisement | FilterError:
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
            return ReadAdvertisement(filter, EVERYTHING, cost)
    # Whoever is told of it here need not parse it.
    filter.remember(normal)
    return ReadAdvertisement(filter, normal, cost)


def advertisement_reading(
    text: str, limits: Limits
) -> Reading[_Key, ReadAdvertisement | FilterError]:
    """To read an advertisement ahead."""

    def make() -> tuple[ReadAdvertisement | FilterError, int]:
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
        "_held",
        "_holders",
        "_indexed",
        "_leaving",
        "_limits",
        "_linger_s",
        "_memory",
    )

    def __init__(
        self, options: Options, limits: Limits, memory: FilterMemory | None = None
    ) -> None:
        self._limits = limits
        self._memory = memory or FilterMemory(limits)
        #: Session → its client, and what is charged to that for it.
        self._charged: dict[int, tuple[str, FilterCost]] = {}
        self._linger_s = options.advertised_for_s
        #: Session → its filters; none for sessions that advertised nothing.
        self._advertised: dict[int, AnyOf] = {}
        #: Sessions whose filters have an index; who published last is last.
        self._indexed: OrderedDict[int, None] = OrderedDict()
        #: What is offered: a text → the sessions that hold it, and the other way round,
        self._holders: dict[str, set[int]] = {}
        self._held: dict[int, tuple[str, ...]] = {}
        #: and a text that nobody holds → when it is withdrawn. The first is due first: what is
        #: held again is gone from here, and comes last when it is let go again.
        self._leaving: OrderedDict[str, float] = OrderedDict()

    def advertises(
        self, now: float, session: int, texts: Sequence[str], client: str = ""
    ) -> Iterable[PartRequest]:
        """A session advertises this and nothing else. `RemoteError` if it must not."""
        if refusal := refusal_of(texts):
            raise RemoteError(refusal)
        work = self._advertising(now, session, dict.fromkeys(texts), client)
        if sum(map(len, texts)) > _AT_ONCE_CHARACTERS:
            return work
        return [each for each in work if not isinstance(each, WorkDone)]

    def _advertising(
        self, now: float, session: int, texts: Iterable[str], client: str
    ) -> Iterator[PartRequest]:
        # Whatever was read ahead is taken at once: later it may be gone.
        limits = self._limits
        found = [(text, _read_ahead.find((text, limits))) for text in texts]
        possible: list[ReadAdvertisement] = []
        for text, made in found:
            read = made or _read(text, limits)
            if isinstance(read, FilterError):
                raise RemoteError(f"an advertisement is no filter: {read.message}") from read
            if read.filter.conjunctions:
                possible.append(read)
            yield WorkDone(_TAKE_WORK + (0 if made else len(text) // _READ_CHARACTERS))
        if session >= 0:
            # A join point has been charged with its pattern.
            self._charge(session, client, [each.cost for each in possible])
        self._let_go(now, session)
        self._forget(session)
        if found:
            filters = [each.filter for each in possible]
            self._advertised[session] = AnyOf(filters, self._limits)
        yield from self._hold(session, [each.offered for each in possible])

    def is_long(self, session: int, events: int) -> bool:
        """Whether so many events of a session are to be looked at in slices."""
        advertised = self._advertised.get(session)
        return advertised is not None and advertised.work_of(events) > _AT_ONCE_WORK

    def refusals(
        self, session: int, envelopes: Sequence[Envelope]
    ) -> Generator[WorkDone, None, Mapping[int, PublishRefusal]]:
        """Place → why the event there is refused, for all that their session did not advertise."""
        advertised = self._advertised.get(session)
        if advertised is None:
            return _NOTHING_REFUSED
        looking = advertised.looking(envelopes)
        while True:
            try:
                yield WorkDone(next(looking))
            except StopIteration as end:
                outside: list[int] = end.value
                break
        if advertised.is_indexed:
            self._note_index(session)
        if not outside:
            return _NOTHING_REFUSED
        reason = f"the event is not among what its publisher advertised, which is {advertised}"
        refusal = PublishRefusal(f"{reason}; advertise more, or change the event", is_final=True)
        return dict.fromkeys(outside, refusal)

    def published(self, session: int) -> list[PartRequest]:
        """A session publishes; without advertisements it may publish anything (rule 2)."""
        is_known = session in self._advertised or session in self._held
        return [] if is_known else self._hold(session, (EVERYTHING,))

    def batch_written(self, now: float) -> list[PartRequest]:
        """Events of a batch are written."""
        asks = self._hold(_BATCHES, (EVERYTHING,))
        self._let_go(now, _BATCHES)
        return asks

    def _charge(self, session: int, client: str, costs: Sequence[FilterCost]) -> None:
        """Charge a session for these, instead of what it had (rule 7)."""
        names = dict.fromkeys(name for cost in costs for name in cost.names)
        # There is no subscription, and an index only where much is published.
        total = FilterCost(sum(cost.bytes for cost in costs) * 2 // 3, tuple(names))
        before = self._charged.pop(session, None)
        if before is not None:
            self._memory.release(*before)
        reason = self._memory.objection(client, total) if costs else ""
        if reason:
            if before is not None:
                self._memory.charge(*before)
                self._charged[session] = before
            raise RemoteError(f"{len(costs)} advertisements are too much: {reason}")
        if costs:
            self._memory.charge(client, total)
            self._charged[session] = client, total

    def left(self, now: float, session: int) -> None:
        """A session is over."""
        self._charge(session, "", ())
        self._forget(session)
        self._let_go(now, session)

    def time_passed(self, now: float) -> list[PartRequest]:
        """Withdraw what nobody advertised for long enough."""
        gone = []
        while self._leaving:
            text, due = next(iter(self._leaving.items()))
            if due > now:
                break
            del self._leaving[text]
            gone.append(text)
        return [ChangeAdvertisements((), tuple(gone))] if gone else []

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return next(iter(self._leaving.values()), None)

    # -- who holds what ---------------------------------------------------------------------------

    def _hold(self, session: int, texts: Iterable[str]) -> list[PartRequest]:
        """A session that holds nothing holds this."""
        held = tuple(dict.fromkeys(texts))
        if held:
            self._held[session] = held
        fresh = []
        for text in held:
            if text not in self._holders and text not in self._leaving:
                fresh.append(text)
            self._leaving.pop(text, None)
            self._holders.setdefault(text, set()).add(session)
        return [ChangeAdvertisements(tuple(fresh), ())] if fresh else []

    def _let_go(self, now: float, session: int) -> None:
        for text in self._held.pop(session, ()):
            holders = self._holders[text]
            holders.discard(session)
            if not holders:
                del self._holders[text]
                self._leaving[text] = now + self._linger_s

    def _forget(self, session: int) -> None:
        self._advertised.pop(session, None)
        self._indexed.pop(session, None)

    def _note_index(self, session: int) -> None:
        """A session has used its index; the one that did so longest ago may lose its own."""
        self._indexed[session] = None
        self._indexed.move_to_end(session)
        if len(self._indexed) > _INDEXES_MAX:
            longest_ago, _ = self._indexed.popitem(last=False)
            self._advertised[longest_ago].forget_index()
