"""How much of a log one answer examines."""

from msgspec.structs import replace

from anabranch.core.options import Options
from anabranch.core.origin.replay import answer, validated_replay
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import Replay
from anabranch.model.limits import DEFAULT_LIMITS

ENTRIES = [
    Datum(n, n, encode_event(Event({"a": n}, id=EventId("p", 1, n)))) for n in range(1, 2_001)
]
WANTED = Replay(1, 1, 0, ["b = 1"], 4_096, 1 << 20)


def examined(conjunctions: int) -> tuple[int, int]:
    """Ticks that one answer examines for a filter of so many conjunctions; and the work."""
    text = " OR ".join(f"b{n} = {n}" for n in range(conjunctions))
    wanted = validated_replay("e", replace(WANTED, filters=[text]), 1, Options(), DEFAULT_LIMITS)
    found, work = answer(wanted, 1, ENTRIES, 2_000)
    return found.through, work


def test_an_answer_examines_fewer_events_for_a_filter_that_costs_more() -> None:
    few, many = examined(1), examined(1_000)
    assert few[0] > 20 * many[0]
    assert many[0] >= 1
    # What it says that it did is in proportion.
    assert many[1] / many[0] > 10 * few[1] / few[0]
