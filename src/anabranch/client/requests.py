"""Request/reply on top of publish/subscribe.

A request is an event with a correlation id. The replier publishes an event with the same
correlation id, addressed to the client that published the request. Rules:

1. Inbox. The requester has one inbox: a reliable subscription, created with the first request, for
   events whose attribute `anabranch.reply_to` is the requester's name. A reply has that attribute,
   and the requester as its only destination.
2. Order. A request is published once the inbox has started on the stream of the requester's own
   broker, so that a reply from that broker cannot be missed. Replies from other brokers arrive once
   the inbox has started there. The application repeats a request that gets no reply; this module
   does not.
3. First reply. The first reply completes the request. Later and unexpected replies are dropped.

State: the pending requests. Lost with the process, like the inbox.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterator

from anabranch.client.errors import ClientError, RequestTimeoutError
from anabranch.client.publish import REPLY_TO
from anabranch.client.subscription import Received
from anabranch.client.subscription_state import SubscriptionState
from anabranch.model.errors import LocalError
from anabranch.model.event import EventId
from anabranch.model.filter import Filter
from anabranch.model.language.builder import attr


class Requests:
    """The pending requests of one client. See the rules at the top of this module."""

    def __init__(self, open_inbox: Callable[[], Awaitable[SubscriptionState]]) -> None:
        self._open_inbox = open_inbox
        self._waiting: dict[str, asyncio.Future[Received]] = {}
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._prefix = secrets.token_hex(6)
        self._count = 0

    async def prepare(self) -> str:
        """Open the inbox if necessary, and return a new correlation id."""
        async with self._opening:
            if self._reader is None or self._reader.done():
                inbox = await self._open_inbox()
                self._reader = asyncio.get_running_loop().create_task(self._read(inbox))
        self._count += 1
        return f"{self._prefix}-{self._count}"

    async def ask(
        self, publish: Callable[[str], Awaitable[EventId]], correlation_id: str, within_s: float
    ) -> Received:
        """Publish a request and return the first reply; raise `RequestTimeoutError` if none
        arrives.

        `publish` takes the correlation id: the given one or, if that is "", a new one.
        """
        try:
            async with asyncio.timeout(within_s) as limit:
                new_id = await self.prepare()
        except TimeoutError:
            raise no_reply(within_s) from None
        chosen_id = correlation_id or new_id
        with self.expecting(chosen_id) as reply:
            try:
                async with asyncio.timeout_at(limit.when()):
                    await publish(chosen_id)
                    return await reply
            except TimeoutError:
                raise no_reply(within_s) from None

    @contextlib.contextmanager
    def expecting(self, correlation_id: str) -> Iterator[asyncio.Future[Received]]:
        """Provide a future for the reply with this correlation id while the context is active."""
        reply: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        if correlation_id in self._waiting:
            raise LocalError(
                f"a request with correlation id {correlation_id!r} is already pending; use another"
            )
        self._waiting[correlation_id] = reply
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]
            if reply.done() and not reply.cancelled():
                reply.exception()

    async def _read(self, inbox: SubscriptionState) -> None:
        try:
            while (received := await inbox.next()) is not None:
                waiting = self._waiting.get(received.event.control.correlation_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(received)
        except ClientError as error:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)

    def close(self) -> None:
        """Stop reading the inbox."""
        if self._reader is not None:
            self._reader.cancel()


def no_reply(timeout_s: float) -> RequestTimeoutError:
    """Return the error of a request that got no reply."""
    return RequestTimeoutError(f"no reply arrived within {timeout_s:g} s")


def inbox_filter(client: str) -> Filter:
    """Return the filter that replies to this client match."""
    return Filter.of(attr(REPLY_TO) == client)
