"""Named cursor at the brokers: makes logs retain events that a streaming query has not read yet.

A log trims events that no subscription needs. With the option `durableSubscription`, a query holds
a durable subscription of that name and advances it as the query progresses. The query does not
read through this subscription: it fetches events in bulk, and Spark keeps its offsets.

Theory of operation: a durable subscription holds the log from its position on. When a client
resumes a durable subscription, it states the ticks it has processed and the broker accepts them.
To move the cursor, this module therefore resumes the subscription and disconnects. The filter is
FALSE, so the broker delivers nothing. Rules:

1. The cursor is created at the first offsets of the query, or found at its previous position. A
   query without a checkpoint and without an explicit start begins at that position.
2. The cursor follows `commit`, at most once per `MOVE_EVERY_S`. It is a lower bound of the
   processed ticks.
3. Streams that the query does not read are not held: on them the cursor stays at the newest tick.
4. If a broker does not answer, the cursor retries at the next commit. If another client has moved
   the cursor meanwhile, that is an error: two queries that share a cursor would release events
   that the other one needs.
5. The cursor survives the query and holds the log until it is unsubscribed.

State: the durable subscription at its broker (`client.durable_cursor`).
"""

import logging
import time
from collections.abc import Mapping

from anabranch.client.durable_cursor import CursorRefusedError, DurableCursor
from anabranch.client.errors import ConnectError
from anabranch.client.options import parse_address
from anabranch.model.errors import EventError
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.names import check_name
from anabranch.spark.broker_access import tls_of
from anabranch.spark.options import OptionError, Options
from anabranch.spark.survey import Survey, SurveyResult

MOVE_EVERY_S = 5.0
_OPTION = "durableSubscription"

log = logging.getLogger("anabranch.spark")

Ticks = Mapping[str, int]


def owner_of(name: str) -> str:
    """Name of the client that owns the cursor's durable subscription."""
    return f"spark-cursor-{name}"


class Cursor:
    """A named cursor. See the rules at the top of this module."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.name = options.durable_subscription
        self._client = owner_of(self.name)
        try:
            check_name(self._client, "it", DEFAULT_LIMITS.name_bytes_max)
        except EventError as error:
            raise OptionError(_OPTION, str(error)) from error
        addresses = [parse_address(text) for text in options.brokers]
        self._cursor = DurableCursor(self._client, self.name, addresses, tls_of(options))
        self._is_taken = False
        self._moved_at = 0.0
        #: Committed ticks that the broker has not received yet.
        self._pending: dict[str, int] = {}

    def standing(self, seen: SurveyResult) -> dict[str, int] | None:
        """The first ticks that it holds; None if there is no such cursor."""
        try:
            found = self._cursor.find(seen.network)
        except CursorRefusedError as error:
            raise self._refusal(error) from error
        if found is None:
            return None
        return {
            stream: min(found.get(stream, extent.end), extent.end)
            for stream, extent in seen.extents.items()
        }

    def begin(self, first: Ticks, survey: Survey) -> None:
        """Take the cursor unless that is done: hold the log from these ticks on."""
        if self._is_taken:
            return
        seen = survey.look()
        held = self.standing(seen)
        if held is None:
            # Ticks that the log no longer has cannot be held; an archive may have them.
            ticks = {
                stream: max(first[stream], extent.oldest) - 1
                for stream, extent in seen.extents.items()
                if stream in first
            }
            try:
                self._cursor.create(ticks, seen.network)
            except CursorRefusedError as error:
                raise self._refusal(error) from error
        for stream, tick in (held or {}).items():
            if tick > first.get(stream, tick):
                log.warning(
                    "Cursor %r holds stream %r from tick %d, but the query starts at tick %d: the"
                    " log may trim the events in between before they are read.",
                    self.name,
                    stream,
                    tick,
                    first[stream],
                )
        self._is_taken = True
        self._moved_at = time.monotonic()

    def move(self, first: Ticks, survey: Survey) -> None:
        """Record that all events before these ticks are processed."""
        self._pending = dict(first)
        if time.monotonic() - self._moved_at >= MOVE_EVERY_S:
            self.settle(survey)

    def settle(self, survey: Survey) -> None:
        if not self._pending:
            return
        self._moved_at = time.monotonic()
        everything = bool(self._options.streams)
        seen = survey.look(everything=everything)
        ticks = {stream: extent.end - 1 for stream, extent in seen.extents.items() if everything}
        ticks |= {s: tick - 1 for s, tick in self._pending.items() if s in seen.origins}
        try:
            self._cursor.move(ticks, seen.network)
        except CursorRefusedError as error:
            raise self._refusal(error) from error
        except ConnectError as error:
            log.warning("Cursor %r was not moved, retrying later: %s", self.name, error)
            return
        self._pending = {}

    def _refusal(self, error: CursorRefusedError) -> OptionError:
        return OptionError(_OPTION, f"{error}; does another query use {self.name!r}?")
