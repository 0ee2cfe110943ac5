"""Request and reply, on top of publishing and subscribing.

A request is an event with a correlation id. Whoever replies publishes an event with the same
correlation id, addressed to the client that published the request. Rules:

1. The requester has one inbox: a reliable subscription, made with the first request, for events
   whose attribute `anabranch.reply_to` is its name. A reply has that attribute, and the requester
   as its only destination.
2. A request is published when the inbox has started at the stream of its own origin at least, so
   that a replier at the same broker is heard for sure. Replies from elsewhere are heard once the
   inbox has started there; a request that finds no ear is repeated by the application, not here.
3. The first reply ends the wait. Later ones, and those that nobody waits for, are dropped.

State: who waits for which reply; lost with the process, like the inbox.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping

from anabranch.client.errors import ClientError, RequestTimeoutError
from anabranch.client.publish import PublishOptions
from anabranch.client.subscription import Received, Subscription
from anabranch.model.errors import LocalError
from anabranch.model.event import EventId, Value
from anabranch.model.filter import Filter
from anabranch.model.language.builder import attr

Publish = Callable[..., Awaitable[EventId]]
#: The attribute by which a reply finds its requester.
REPLY_TO = "anabranch.reply_to"


class Requests:
    """The requests of one client that wait for a reply. See the top of this module."""

    def __init__(self, open_inbox: Callable[[], Awaitable[Subscription]]) -> None:
        self._open_inbox = open_inbox
        self._waiting: dict[str, asyncio.Future[Received]] = {}
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._prefix = secrets.token_hex(6)
        self._count = 0

    async def prepare(self) -> str:
        """Make sure that a reply would be heard; a correlation id for a new request."""
        async with self._opening:
            if self._reader is None or self._reader.done():
                inbox = await self._open_inbox()
                self._reader = asyncio.get_running_loop().create_task(self._read(inbox))
        self._count += 1
        return f"{self._prefix}-{self._count}"

    async def ask(
        self,
        publish: Publish,
        attributes: Mapping[str, Value],
        within_s: float,
        how: PublishOptions,
    ) -> Received:
        """Publish a request, and return the first reply; `RequestTimeoutError` if none comes."""
        try:
            async with asyncio.timeout(within_s) as limit:
                correlation_id = await self.prepare()
        except TimeoutError:
            raise self.nobody(within_s) from None
        how.setdefault("correlation_id", correlation_id)
        with self.expecting(how["correlation_id"]) as reply:
            try:
                async with asyncio.timeout_at(limit.when()):
                    await publish(attributes, **how)
                    return await reply
            except TimeoutError:
                raise self.nobody(within_s) from None

    @contextlib.contextmanager
    def expecting(self, correlation_id: str) -> Iterator[asyncio.Future[Received]]:
        """The reply to come, for as long as somebody waits for it."""
        reply: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        if correlation_id in self._waiting:
            raise LocalError(f"a request with correlation id {correlation_id!r} waits already")
        self._waiting[correlation_id] = reply
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]
            if reply.done() and not reply.cancelled():
                reply.exception()

    @staticmethod
    def nobody(timeout_s: float) -> RequestTimeoutError:
        """What to tell who has waited in vain."""
        return RequestTimeoutError(f"no reply came within {timeout_s:g} s")

    async def _read(self, inbox: Subscription) -> None:
        try:
            async for received in inbox:
                waiting = self._waiting.get(received.event.control.correlation_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(received)
        except ClientError as error:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._reader is not None:
            self._reader.cancel()


def inbox_filter(client: str) -> Filter:
    """What replies to this client match."""
    return Filter.of(attr(REPLY_TO) == client)
