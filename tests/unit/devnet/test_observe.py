"""Who answers at a port is asked for its name, not only whether somebody does."""

import asyncio
import json
from pathlib import Path

import pytest

from anabranch.config.addresses import BrokerSettings
from anabranch.devnet.observe import is_started

OURS = {"network": "pair", "broker": "a", "pid": 7, "state": "ready", "more": [1]}


async def answered(body: bytes, code: int = 200) -> bool:
    """Whether broker a of network pair serves, in process 7, where this is answered."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\n\r\n" % code + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        at = BrokerSettings(name="a", observe_host=host, observe_port=port, state=Path("/nowhere"))
        return await is_started(at, "pair", 7)


def test_a_broker_that_serves_is_known_by_network_name_and_process() -> None:
    assert asyncio.run(answered(json.dumps(OURS).encode()))


@pytest.mark.parametrize(
    "other", [{"network": "star"}, {"broker": "b"}, {"pid": 8}, {"state": "starting"}]
)
def test_somebody_else_at_its_port_is_not_taken_for_it(other: dict[str, object]) -> None:
    assert not asyncio.run(answered(json.dumps(OURS | other).encode()))


@pytest.mark.parametrize(("body", "code"), [(b"ok", 200), (b"{}", 200), (json.dumps(OURS), 503)])
def test_what_is_no_status_of_a_broker_is_none(body: bytes | str, code: int) -> None:
    assert not asyncio.run(answered(body if isinstance(body, bytes) else body.encode(), code))
