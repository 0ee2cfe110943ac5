"""Addressed events: they reach the clients they name, if those want them."""

from anabranch.model.event import Control
from tests.edge_parts import Rig, datum


def test_an_addressed_event_reaches_only_the_clients_it_names() -> None:
    rig = Rig()
    sessions = {client: rig.connect(client) for client in ("anna", "ben")}
    for session in sessions.values():
        rig.subscribe(session)
    rig.arrive(silent=[(1, 1)])
    rig.arrive(2, datum(3, control=Control(destinations=("ben",))), 4)
    assert rig.delivered(sessions["anna"]) == [2, 4]
    assert rig.delivered(sessions["ben"]) == [2, 3, 4]


def test_a_filter_that_does_not_want_an_addressed_event_does_not_get_it() -> None:
    rig = Rig()
    session = rig.connect("anna")
    rig.subscribe(session, "s", "price > 5")
    rig.arrive(silent=[(1, 1)])
    rig.arrive(datum(2, price=1, control=Control(destinations=("anna",))))
    assert rig.delivered(session) == []
