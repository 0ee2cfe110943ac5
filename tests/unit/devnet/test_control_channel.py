"""The control channel of a running network: what is refused, and what is left behind."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from anabranch.config.network_file import loads
from anabranch.devnet.control_channel import SOCKET, ChangeRequest, send, serve
from anabranch.devnet.network import LocalNetwork
from anabranch.model.errors import LocalError

TEXT = '[network]\nname = "n"\n[tree]\na = ["b"]\n'
BOUND_S = 120.0


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Path]:
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    file = loads(TEXT, directory / "n.toml")
    task = asyncio.create_task(serve(LocalNetwork(file, directory)))
    try:
        await asyncio.to_thread(_wait_until_open, directory)
        yield directory
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _wait_until_open(directory: Path) -> None:
    deadline = time.monotonic() + BOUND_S
    while "no network is running" in asked(directory, ChangeRequest(text="", path="none.toml")):
        assert time.monotonic() < deadline, "nobody listens"
        time.sleep(0.01)


def asked(directory: Path, request: ChangeRequest) -> str:
    with pytest.raises(LocalError) as caught:
        list(send(directory, request))
    return str(caught.value)


def run(directory: Path, *requests: ChangeRequest) -> list[str]:
    async def story() -> list[str]:
        async with served(directory) as there:
            return [await asyncio.to_thread(asked, there, each) for each in requests]

    return asyncio.run(story())


def test_a_network_file_that_is_invalid_is_refused_and_the_next_request_is_served(
    tmp_path: Path,
) -> None:
    bad = ChangeRequest(text="[network", path="x.toml")
    worse = ChangeRequest(text='[network]\nname = "other"\n[tree]\na = ["b"]\n', path="y.toml")
    first, second = run(tmp_path, bad, worse)
    assert "x.toml" in first
    assert second
    assert second != first


def test_a_directory_with_a_long_path_has_a_channel_too(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-long-name-of-a-directory"] * 6)
    (answer,) = run(deep, ChangeRequest(text="[network", path="x.toml"))
    assert "x.toml" in answer


def test_the_socket_is_private_and_goes_with_the_network(tmp_path: Path) -> None:
    async def story() -> int:
        async with served(tmp_path) as directory:
            return (directory / SOCKET).stat().st_mode & 0o777

    assert asyncio.run(story()) == 0o600
    assert not (tmp_path / SOCKET).exists()


def test_a_socket_that_a_killed_network_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET))
    request = ChangeRequest(text="[network", path="x.toml")
    assert "no network is running" in asked(tmp_path, request)
    assert "x.toml" in run(tmp_path, request)[0]


@pytest.mark.parametrize("data", [b"garbage\n", b"{}\n", b'{"text": 3, "path": ""}\n'])
def test_what_is_not_a_request_is_answered_as_a_failure(tmp_path: Path, data: bytes) -> None:
    def talk(directory: Path) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(BOUND_S)
            connection.connect(str(directory / SOCKET))
            connection.sendall(data)
            return connection.makefile("rb").read()

    async def story() -> bytes:
        async with served(tmp_path) as directory:
            return await asyncio.to_thread(talk, directory)

    answer = json.loads(asyncio.run(story()))
    assert answer["has_failed"]


def test_a_client_that_asks_for_nothing_is_in_nobodys_way(tmp_path: Path) -> None:
    async def story() -> str:
        async with served(tmp_path) as directory:
            request = ChangeRequest(text="[network", path="x.toml")
            with socket.socket(socket.AF_UNIX) as silent:
                silent.connect(str(directory / SOCKET))
                return await asyncio.to_thread(asked, directory, request)

    assert "x.toml" in asyncio.run(story())
