"""Reading matches: what cannot be read costs nothing but itself."""

import msgspec
import pytest

from anabranch import Event, Matched, connect
from anabranch.client.patterns import PatternSubscription
from anabranch.model.errors import RemoteError
from tests.client_parts import network, run

ONCE = "e:{price > 0} WITHIN 5 s"


async def given_again(matches: PatternSubscription, first: Matched, bad: int) -> None:
    """Let five more events come, as if a broker had sent them; one of them tells of no match."""
    for number in range(5):
        tick = first.received.tick + 100 + number
        item = msgspec.structs.replace(first.received, tick=tick)
        if number == bad:
            item = msgspec.structs.replace(item, event=Event({}))
        matches._state.arrived(item)


@pytest.mark.parametrize("bad", range(5))
def test_a_batch_goes_up_to_what_cannot_be_read_and_goes_on_after_it(bad: int) -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u") as client:
            matches = await client.subscribe_pattern(ONCE, manual_ack=True)
            await client.publish({"price": 1})
            first = await matches.get()
            await given_again(matches, first, bad)
            before = await matches.get_batch() if bad else []
            with pytest.raises(RemoteError, match="is not a notification"):
                await matches.get_batch()
            after = await matches.get_batch() if bad < 4 else []
            ticks = [each.received.tick - first.received.tick - 100 for each in (*before, *after)]
            assert ticks == [number for number in range(5) if number != bad]

    run(story)
