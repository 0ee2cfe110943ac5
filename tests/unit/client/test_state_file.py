import time
from pathlib import Path

import pytest

from anabranch import ClientOptions, LocalError, connect
from anabranch.client.state_file import ClientState
from anabranch.core.session.effects import ResumePoint
from anabranch.model.client_frames import Subscribe
from tests.client_parts import frames_of, network, run

QUICK = ClientOptions(ack_after_s=0.0, keep_every_s=0.0)


def test_a_state_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    state = ClientState(tmp_path / "s", "c", "unused")
    assert state.next_incarnation(7) == 7
    assert state.next_incarnation(5) == 8
    state.save_resume_points(
        [ResumePoint(name="d", filter="TRUE", number=2, acked={"a": 3}, received={"a": 9})]
    )
    state.save_resume_points([ResumePoint(name="unknown", filter="TRUE", number=0)])
    state.close()
    again = ClientState(tmp_path / "s", None, "unused")
    assert (again.name, again.next_incarnation(0)) == ("c", 9)
    assert again.resume_point("d") == ResumePoint(name="d", filter="TRUE", number=2, acked={"a": 3})
    assert again.resume_point("unknown") is None
    again.forget("d")
    again.close()
    last = ClientState(tmp_path / "s", "c", "unused")
    assert last.resume_point("d") is None
    last.close()


def test_a_state_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    state = ClientState(tmp_path, "c", "")
    with pytest.raises(LocalError, match=r"in use by process \d+"):
        ClientState(tmp_path, "c", "")
    state.close()
    ClientState(tmp_path, "c", "").close()


@pytest.mark.parametrize("place", ["z.csv", "z.csv/below"])
def test_a_file_is_no_state(tmp_path: Path, place: str) -> None:
    (tmp_path / "z.csv").touch()
    with pytest.raises(LocalError, match=f"{place} .* there is a file in its place"):
        ClientState(tmp_path / place, "c", "c")


def test_a_state_is_for_one_client(tmp_path: Path) -> None:
    state = ClientState(tmp_path, "c", "")
    state.next_incarnation(1)
    state.close()
    with pytest.raises(LocalError, match="belongs to client 'c', not to 'd'"):
        ClientState(tmp_path, "d", "")
    # The refusal must not keep it locked.
    ClientState(tmp_path, "c", "").close()


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"{", "not a valid client state"), (b'{"client":"c","format":99}', "has format 99")],
)
def test_a_damaged_state_is_refused_with_its_place(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "client.json").write_bytes(content)
    with pytest.raises(LocalError, match=rf"client\.json.*{problem}"):
        ClientState(tmp_path, "c", "")


def test_a_half_written_state_is_not_looked_at(tmp_path: Path) -> None:
    state = ClientState(tmp_path, "c", "")
    state.next_incarnation(5)
    state.close()
    (tmp_path / "client.new").write_bytes(b"{half")
    again = ClientState(tmp_path, "c", "")
    assert again.next_incarnation(0) == 6
    again.close()


def test_a_client_with_a_state_comes_back_without_asking_the_owner(tmp_path: Path) -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b), await connect(a.address, name="p") as p:
            async with await connect(a.address, state=tmp_path, name="s", options=QUICK) as s:
                subscription = await s.subscribe("TRUE", durable="d")
                await subscription.wait_started("a", "b")
                await p.publish_many([{"n": 1}, {"n": 2}])
                assert [(await subscription.get())["n"] for _ in range(2)] == [1, 2]
            async with await connect(b.address, state=tmp_path, name="s", options=QUICK) as s:
                subscription = await s.subscribe("TRUE", durable="d")
                await subscription.wait_started("a", "b")
                await p.publish({"n": 3})
                assert [(await subscription.get())["n"] for _ in range(2)] == [2, 3]
            (asked,) = frames_of(b, Subscribe)
            assert isinstance(asked, Subscribe)
            assert (asked.start, asked.number) == ("resume", 2)
            assert asked.ticks.keys() == {"a", "b"}

    run(story)


def test_incarnations_grow_with_the_state_even_if_the_clock_goes_back(tmp_path: Path) -> None:
    async def story() -> None:
        state = ClientState(tmp_path, "p", "")
        an_hour_ahead = time.time_ns() + 3600 * 10**9
        state.next_incarnation(an_hour_ahead)
        state.close()
        async with network("a") as (a,), await connect(a.address, state=tmp_path) as client:
            assert client.name == "p"
            assert (await client.publish({"n": 1})).incarnation == an_hour_ahead + 1

    run(story)


def test_an_ended_subscription_is_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, state=tmp_path, name="s") as client,
        ):
            await (await client.subscribe("TRUE", durable="d")).unsubscribe()
        state = ClientState(tmp_path, "s", "")
        assert state.resume_point("d") is None
        state.close()

    run(story)
