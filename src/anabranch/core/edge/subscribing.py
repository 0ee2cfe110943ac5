"""What a `Subscribe` must be like before anything is done about it.

Whatever is wrong with a request is said to the client with `Refused`, and its session goes on; only
a frame that no client could send in earnest costs the session. Rules:

1. A name stands for one subscription per session. A repeated request for the same one is answered
   again; a different one under the same name is refused.
2. A durable subscription belongs to the client that made it.
3. A durable one resumes, and a reliable one after ticks that its client has. Best effort begins
   now.
4. The numbers of subscriptions per edge and per client are bounded.
5. The ownership number of a client may be `NUMBER_LEAP_MAX` beyond the one that is known here, or
   beyond 0 if none is, but no more: with the highest number of all nobody could attach any more.
   An edge itself counts on from whatever it finds, so a client that comes back with number 0 is
   always given the next one.
6. Whoever resumes may name streams that have left the network since. There is nothing to go on with
   there; they are passed over.
"""

from msgspec.structs import replace

from anabranch.core.edge.attaching import Attaching, other_filter
from anabranch.core.edge.standing import Standing
from anabranch.core.edge.state import State
from anabranch.core.edge.subscriptions import Attach, Session, Subscription
from anabranch.core.points.names import RESERVED
from anabranch.model.client_frames import Refused, Subscribe
from anabranch.model.errors import EventError, FilterError
from anabranch.model.filter import Filter
from anabranch.model.names import check_name

#: Beyond any tick a stream will have; one less than what a frame can say.
_TICK_MAX = (1 << 62) - 1
#: A filter that is written back is shorter than this many times its text: `1e15,` is the worst.
_GROWTH_MAX = 8
#: No client attaches a subscription this often while an edge does not hear of it.
NUMBER_LEAP_MAX = 1 << 40


class Subscribing:
    """Checks requests for subscriptions. See the rules at the top of this module."""

    def __init__(self, state: State, attaching: Attaching, standing: Standing) -> None:
        self._state = state
        self._attaching = attaching
        self._standing = standing

    def subscribe(self, now: float, session: Session, frame: Subscribe) -> None:
        """A client wants a subscription."""
        frame = self._without_gone(frame)
        is_durable = frame.quality == "durable"
        name = frame.subscription
        key = name if is_durable else _own_key(session, name)
        try:
            check_name(frame.subscription, "subscription", self._state.limits.name_bytes_max)
            filter = self._filter(frame)
        except (FilterError, EventError) as error:
            self._refuse(session, frame, str(error))
            return
        if self._is_repeated(session, frame, key, filter):
            return
        reason = self._objection(session, frame, key, filter)
        if reason:
            self._refuse(session, frame, reason)
        else:
            self._attaching.begin(now, Attach(key, session, frame, filter))

    def _without_gone(self, frame: Subscribe) -> Subscribe:
        """Rule 6."""
        streams = self._state.streams
        if frame.start != "resume" or frame.ticks.keys() <= streams.keys():
            return frame
        return replace(frame, ticks={s: tick for s, tick in frame.ticks.items() if s in streams})

    def _refuse(self, session: Session, frame: Subscribe, reason: str) -> None:
        self._state.tell(session, Refused(frame.request, reason[:1000]))

    def _filter(self, frame: Subscribe) -> Filter | None:
        asks_owner = frame.start == "resume" and frame.number == 0 and frame.quality == "durable"
        if not frame.filter and asks_owner:
            return None
        filter = Filter.parse(frame.filter, self._state.limits)
        # Whether its normal form is within the limits shows only when it is made.
        assert filter.conjunctions is not None
        if len(frame.filter) > self._state.limits.filter_bytes_max // _GROWTH_MAX:
            # Rows and frames hold the text that it is written back as, which may be longer.
            Filter.parse(str(filter), self._state.limits)
        return filter

    # -- repetitions ----------------------------------------------------------------------------

    def _is_repeated(
        self, session: Session, frame: Subscribe, key: str, filter: Filter | None
    ) -> bool:
        """Whether this was asked before in this session; then it is answered, or will be."""
        attach = self._state.attaches.get(key)
        if attach is not None and attach.session is session:
            if replace(frame, request=attach.frame.request) != attach.frame:
                return False
            attach.request = frame.request
            return True
        subscription = session.names.get(frame.subscription)
        if subscription is None or not _is_same(subscription, frame, filter):
            return False
        self._standing.tell(subscription, session, frame.request)
        return True

    # -- objections -----------------------------------------------------------------------------

    def _objection(
        self, session: Session, frame: Subscribe, key: str, filter: Filter | None
    ) -> str:
        """Why a request cannot be granted; "" if it can."""
        attach = self._state.attaches.get(key)
        if key.startswith(RESERVED) and session.number >= 0:
            return f"names that begin with {RESERVED!r} are those of join points"
        if attach is not None and attach.client != session.client:
            return f"the name {frame.subscription!r} belongs to another client"
        keys = (frame.subscription, _own_key(session, frame.subscription))
        is_wanted = any(each in session.attaching for each in keys)
        if frame.subscription in session.names or is_wanted or (attach and attach.session):
            return f"the name {frame.subscription!r} is in use for another subscription"
        return (
            self._start_objection(frame)
            or self._number_objection(session, frame, key)
            or self._known_objection(session, frame, key, filter)
            or ("" if key in self._state.subscriptions else self._limit_objection(session, frame))
        )

    def _start_objection(self, frame: Subscribe) -> str:
        if frame.start != "now" and frame.quality == "best-effort":
            return "a best-effort subscription starts now; ask for a reliable one"
        if frame.start == "resume" and frame.quality != "durable" and not frame.ticks:
            return "a reliable subscription resumes after ticks; say which, or subscribe anew"
        for stream, tick in frame.ticks.items():
            if stream not in self._state.streams:
                return f"there is no stream {stream!r}"
            if tick > _TICK_MAX:
                return f"there is no tick {tick}"
        return ""

    def _number_objection(self, session: Session, frame: Subscribe, key: str) -> str:
        """Rule 5. Join points count in steps of their own; what others say of them is checked
        where they are taken."""
        state = self._state
        known = state.subscriptions.get(key) or state.closed.get(key)
        number = 0 if known is None else known.number
        if session.number < 0 or frame.number - number <= NUMBER_LEAP_MAX:
            return ""
        return (
            f"number {frame.number} is more than {NUMBER_LEAP_MAX} beyond {number}, which is known"
            " here; come back to the subscription without its state, and get the next number"
        )

    def _known_objection(
        self, session: Session, frame: Subscribe, key: str, filter: Filter | None
    ) -> str:
        name = frame.subscription
        known = self._state.subscriptions.get(key)
        if known is None or known.is_leaving:
            return ""
        if known.client != session.client:
            return f"the name {name!r} belongs to another client"
        if known.quality != frame.quality or known.name != name or known.session is not None:
            return f"the name {name!r} is in use for another subscription"
        if filter is not None and filter != known.filter:
            return other_filter(name)
        if 0 < frame.number < known.number:
            return f"{name!r} has been attached with number {known.number}, after {frame.number}"
        return ""

    def _limit_objection(self, session: Session, frame: Subscribe) -> str:
        state = self._state
        count = len(state.subscriptions) + len(state.attaches) + len(state.closed)
        if count >= state.limits.subscriptions_max:
            return f"this broker has {count} subscriptions and takes no more"
        client, quota = session.client, state.limits.client_subscriptions_max
        if state.owned.get(client, 0) >= quota:
            text = f"client {client!r} has {quota} subscriptions at this broker, its quota"
            return f"{text} (client_subscriptions_max); end some of them first"
        if frame.quality == "durable" and state.ended.get(client, 0) >= quota:
            text = f"client {client!r} ended {quota} durable subscriptions, its quota"
            return f"{text} (client_subscriptions_max), while other brokers are away; wait for them"
        return ""


def _own_key(session: Session, name: str) -> str:
    """The key of a subscription that ends with its session. Durable ones have their name."""
    return f"{session.client}\0{name}"


def _is_same(subscription: Subscription, frame: Subscribe, filter: Filter | None) -> bool:
    """Whether a request asks for what is served already."""
    return (
        subscription.quality == frame.quality
        and frame.number <= subscription.number
        and (filter is None or filter == subscription.filter)
    )
