"""What a broker promised to its clients, and when: read from the bytes that it sent and received.

The recorder puts these bytes into one row with the calls to the disk. A promise counts from the
call on with which its frame was sent; what a client allows (an acknowledgement, the end of a
subscription) from the call on with which it was received.

`Conversation` follows the row. `Promises` is what stands at one place in it. Promises outlive a
power cut, so a new life goes on with those of the life before.
"""

import msgspec

from anabranch.model.client_frames import (
    Ack,
    AnyClientFrame,
    Commit,
    Committed,
    Confirmed,
    Connect,
    Define,
    Defined,
    Deliver,
    Publish,
    Stage,
    Staged,
    StartsAt,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import EventId
from anabranch.wire.codec import decode_client
from anabranch.wire.framing import FrameReader
from tests.power.write_stream import Call


class Durable(msgspec.Struct):
    """A durable subscription."""

    client: str
    frame: Subscribe
    #: Whether the client was told that it stands.
    is_told: bool = False
    #: The first tick that it was promised; 0 if it was not told yet.
    start: int = 0
    #: The newest tick that its client is done with, as far as the broker heard.
    acked: int = 0
    #: Whether its client has asked for its end: nothing is promised from then on.
    is_over: bool = False


class Written(msgspec.Struct):
    """A batch that a client asked for."""

    client: str
    frame: Commit
    #: Whether the client was told that it is in the stream; with which ticks.
    is_told: bool = False
    ticks: tuple[int, int] = (0, 0)


class Promises(msgspec.Struct):
    """What a broker has promised."""

    #: (publisher, incarnation) → events up to this sequence are safe.
    confirmed: dict[tuple[str, int], int] = {}
    #: What publishers sent, in order.
    published: dict[EventId, bytes] = {}
    durables: dict[str, Durable] = {}
    #: (token, index) → the chunk, of those that are safe.
    staged: dict[tuple[str, int], Stage] = {}
    batches: dict[int, Written] = {}
    #: Id → who asked for it, and how.
    patterns: dict[str, tuple[str, Define]] = {}
    #: The newest tick that anybody was told.
    tick: int = 0

    def is_confirmed(self, event_id: EventId) -> bool:
        """Whether its publisher was told that it is safe."""
        key = (event_id.publisher, event_id.incarnation)
        return event_id.sequence <= self.confirmed.get(key, 0)

    def copy(self) -> "Promises":
        """As it is now."""
        replace = msgspec.structs.replace
        return replace(
            self,
            confirmed=dict(self.confirmed),
            published=dict(self.published),
            durables={name: replace(each) for name, each in self.durables.items()},
            staged=dict(self.staged),
            batches={batch: replace(each) for batch, each in self.batches.items()},
            patterns=dict(self.patterns),
        )


class _Line:
    """One connection, both ways."""

    def __init__(self) -> None:
        self.readers = {"<": FrameReader(), ">": FrameReader()}
        #: Ways on which the greeting is over.
        self.greeted: set[str] = set()
        self.client = ""
        #: Requests that are not answered yet.
        self.open: dict[int, AnyClientFrame] = {}


class Conversation:
    """What was said in one life, up to some place. See the top of this module."""

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self._lines: dict[int, _Line] = {}
        #: How many frames have changed the promises.
        self.count = 0

    def take(self, call: Call) -> None:
        """The next call of the stream."""
        if call.kind == "N":
            self._lines[call.one] = _Line()
        elif call.kind in "<>":
            line = self._lines[call.one]
            for data in line.readers[call.kind].feed(call.data):
                if call.kind not in line.greeted:
                    line.greeted.add(call.kind)
                    continue
                self._frame(line, decode_client(data), is_heard=call.kind == "<")

    def _frame(self, line: _Line, frame: AnyClientFrame, *, is_heard: bool) -> None:
        before = self.count
        self.count += 1
        if is_heard:
            self._heard(line, frame)
        elif not self._told(line, frame):
            self.count = before

    def _heard(self, line: _Line, frame: AnyClientFrame) -> None:
        promises = self.promises
        request = getattr(frame, "request", None)
        if request is not None:
            line.open[request] = frame
        if isinstance(frame, Connect):
            line.client = frame.client
        elif isinstance(frame, Publish):
            for body in frame.bodies:
                promises.published[decode_envelope(body).id] = body
        elif isinstance(frame, Ack):
            for ticks in frame.ticks.values():
                for name, tick in ticks.items():
                    durable = promises.durables[name]
                    durable.acked = max(durable.acked, tick)
        elif isinstance(frame, Commit):
            promises.batches.setdefault(frame.batch, Written(line.client, frame))
        elif isinstance(frame, Unsubscribe) and frame.subscription in promises.durables:
            promises.durables[frame.subscription].is_over = True
        elif isinstance(frame, Subscribe) and frame.quality == "durable":
            known = promises.durables.get(frame.subscription)
            if known is None or known.is_over:
                promises.durables[frame.subscription] = Durable(line.client, frame)

    def _told(self, line: _Line, frame: AnyClientFrame) -> bool:
        """Whether it is a promise."""
        promises = self.promises
        asked = line.open.pop(getattr(frame, "request", -1), None)
        if isinstance(frame, Confirmed):
            key = (frame.publisher, frame.incarnation)
            promises.confirmed[key] = max(frame.sequence, promises.confirmed.get(key, 0))
        elif isinstance(frame, Subscribed):
            promises.durables[frame.subscription].is_told = True
        elif isinstance(frame, StartsAt):
            durable = promises.durables[frame.subscription]
            durable.start = durable.start or frame.tick
            # All before it was synced: marks are ticks too.
            promises.tick = max(promises.tick, frame.tick - 1)
        elif isinstance(frame, Deliver):
            last = max(match.through for match in frame.matches)
            promises.tick = max(promises.tick, last)
        elif isinstance(frame, Staged) and isinstance(asked, Stage):
            promises.staged[asked.token, asked.index] = asked
        elif isinstance(frame, Committed):
            written = promises.batches[frame.batch]
            written.is_told, written.ticks = True, (frame.first, frame.last)
            promises.tick = max(promises.tick, frame.last)
        elif isinstance(frame, Defined) and isinstance(asked, Define):
            promises.patterns[asked.pattern] = (line.client, asked)
        else:
            return False
        return True
