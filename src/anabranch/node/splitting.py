"""Large frames of clients in parts, so that no single one makes a long step.

The events of one frame are independent but for their order, and so are acknowledgements. So a frame
with very many of them is handled as several frames. If a later part breaks the protocol, the client
is cut, and the earlier parts stay handled.

Pure functions; no state.
"""

from collections.abc import Iterator

from anabranch.model.client_frames import Ack, AnyClientFrame, Publish

#: Events of one part, and bytes of them; at least one.
EVENTS_MAX = 256
BYTES_MAX = 1024 * 1024
#: Ticks of one part, and streams that have them.
TICKS_MAX = 2_048


def parts_of(frame: AnyClientFrame) -> list[AnyClientFrame]:
    """The frames that a large frame stands for; none if it is not large."""
    if isinstance(frame, Publish):
        bodies = frame.bodies
        if len(bodies) > EVENTS_MAX or sum(map(len, bodies)) > BYTES_MAX:
            return list(_of_publish(bodies)) if len(bodies) > 1 else []
    elif isinstance(frame, Ack) and _size_of(frame) > TICKS_MAX:
        return list(_of_ack(frame))
    return []


def _size_of(frame: Ack) -> int:
    return len(frame.ticks) + sum(map(len, frame.ticks.values()))


def _of_publish(bodies: list[bytes]) -> Iterator[Publish]:
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and (len(part) >= EVENTS_MAX or size + len(body) > BYTES_MAX):
            yield Publish(part)
            part, size = [], 0
        part.append(body)
        size += len(body)
    yield Publish(part)


def _of_ack(frame: Ack) -> Iterator[Ack]:
    part: dict[str, dict[str, int]] = {}
    room = TICKS_MAX
    for stream, ticks in frame.ticks.items():
        every = list(ticks.items())
        # One less: the stream counts too, whether or not it has ticks.
        for first in range(0, len(every) or 1, TICKS_MAX - 1):
            some = dict(every[first : first + TICKS_MAX - 1])
            if len(some) + 1 > room:
                yield Ack(part)
                part, room = {}, TICKS_MAX
            part[stream] = some
            room -= len(some) + 1
    yield Ack(part)
