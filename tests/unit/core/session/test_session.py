"""A session's questions about the log: each has one answer, and none outlives a connection."""

import pytest

from anabranch.core.session.effects import LogQueryAnswered, SendFrame, SubscriptionRefused
from anabranch.core.session.session import FETCH_REQUEST_FIRST, ClientSession
from anabranch.model.client_frames import (
    NOT_KEPT,
    Describe,
    Described,
    Fetch,
    Fetched,
    Refused,
)
from anabranch.model.errors import RemoteError

DESCRIBED = Described(FETCH_REQUEST_FIRST, "shop", "a", 1, 9, 5, 6, {"a": ""})


def connected() -> ClientSession:
    session = ClientSession("reader")
    session.connected(0.0)
    return session


def test_questions_are_asked_and_their_answers_told() -> None:
    session = connected()
    assert session.describe() == (FETCH_REQUEST_FIRST, [SendFrame(Describe(FETCH_REQUEST_FIRST))])
    question = Fetch(FETCH_REQUEST_FIRST + 1, 3, 7, "n > 1", 99)
    assert session.fetch(3, 7, "n > 1", 99) == (FETCH_REQUEST_FIRST + 1, [SendFrame(question)])
    answer = Fetched(FETCH_REQUEST_FIRST + 1, 3, 5, 1, b"row")
    assert session.frame(0.0, answer) == [LogQueryAnswered(answer)]
    assert session.frame(0.0, DESCRIBED) == [LogQueryAnswered(DESCRIBED)]


def test_a_refusal_goes_to_whom_it_concerns() -> None:
    session = connected()
    session.subscribe(0.0, "orders", "n > 1")
    request, _ = session.fetch(3, 7, "", 99)
    refused = Refused(request, "the log begins later", NOT_KEPT, 6)
    assert session.frame(0.0, refused) == [LogQueryAnswered(refused)]
    assert session.frame(0.0, Refused(1, "no")) == [SubscriptionRefused("orders", "no")]


@pytest.mark.parametrize(
    "answer",
    [
        Fetched(FETCH_REQUEST_FIRST, 4, 5, 0, b""),
        Fetched(FETCH_REQUEST_FIRST, 3, 8, 0, b""),
        Fetched(FETCH_REQUEST_FIRST + 1, 3, 5, 0, b""),
        DESCRIBED,
        Refused(FETCH_REQUEST_FIRST + 7, "no"),
    ],
    ids=["another tick", "too far", "never asked", "a description", "a refusal of nothing"],
)
def test_an_answer_that_is_not_to_the_point_breaks_the_protocol(
    answer: Fetched | Described | Refused,
) -> None:
    session = connected()
    session.fetch(3, 7, "", 99)
    with pytest.raises(RemoteError):
        session.frame(0.0, answer)


def test_nothing_is_answered_twice_or_after_the_connection_is_gone() -> None:
    session = connected()
    session.describe()
    assert session.frame(0.0, DESCRIBED)
    with pytest.raises(RemoteError):
        session.frame(0.0, DESCRIBED)
    request, _ = session.describe()
    session.disconnected(1.0)
    session.connected(2.0)
    with pytest.raises(RemoteError):
        session.frame(2.0, Refused(request, "late"))
    assert session.describe()[0] == request + 1
