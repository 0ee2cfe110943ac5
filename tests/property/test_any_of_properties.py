"""Any of some filters, against asking each of them in turn."""

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.matching.any_of import FEW, FEW_WITHOUT_KERNELS, PAYS_OFF_AFTER, AnyOf
from anabranch.matching.engine import EngineName
from anabranch.model.encoding import decode_envelope, encode_event
from anabranch.model.event import Control, Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from tests.matching_parts import ENGINES, Attributes, events, filters, plain_filters

#: Some are the same, as those of an application may be; equal ones count like others.
crowds = st.lists(plain_filters | filters, min_size=1, max_size=6).flatmap(
    lambda few: st.sampled_from([1, 1 + FEW, 1 + FEW_WITHOUT_KERNELS]).map(few.__mul__)
)
some_events = st.lists(events, min_size=1, max_size=6)
#: With room for few names, some filters do not go into the index.
limits = st.sampled_from([DEFAULT_LIMITS, Limits(index_attributes_max=2)])
#: Events that are not like most have to be decoded.
controls = st.sampled_from(
    [Control(), Control(time_limit_ns=5), Control(hop_limit=1), Control(destinations=("someone",))]
)


@settings(deadline=None, max_examples=150)
@given(crowds, some_events, limits, controls, st.sampled_from(ENGINES))
def test_the_answer_is_that_of_asking_every_filter_in_turn(
    crowd: list[Filter],
    told: list[Attributes],
    limits: Limits,
    control: Control,
    engine: EngineName,
) -> None:
    some = AnyOf(crowd, limits, engine)
    few = FEW if engine == "numba" else FEW_WITHOUT_KERNELS
    made = [Event(a, id=EventId("p", 1, n + 1), control=control) for n, a in enumerate(told)]
    envelopes = [decode_envelope(encode_event(event)) for event in made]
    outside = [n for n, e in enumerate(made) if not any(f.matches(e) for f in crowd)]
    for _ in range(2):
        assert some.outside(envelopes) == outside
        assert [n for n, event in enumerate(made) if not some.matches(event)] == outside
        for _ in range(PAYS_OFF_AFTER):
            some.matches(made[0])
        assert some.is_indexed == (len(crowd) > few)
