"""A named cursor at the brokers: so that logs keep what a streaming query has not read yet.

A log forgets what no subscription needs any more. The option `durableSubscription` makes a query
count: it takes a durable subscription of that name, and lets it follow. The query does not read
from it; events come by fetches, in bulk, and the offsets of the query are Spark's. Theory of
operation: a durable subscription holds the log from where it stands. A client that comes back to
one says which ticks it has dealt with, and is believed; so to move the cursor, come back and leave.
Nothing is delivered to it, since its filter is FALSE. Rules:

1. It is taken at the first offsets of the query, or found where it stood; a query without a
   checkpoint, which is not told where to begin, begins there.
2. It follows `commit`, at most every `MOVE_EVERY_S`: a lower bound of what was dealt with.
3. Streams that the query does not read are not held: there it is always at the newest tick.
4. A broker that does not answer is asked again with the next commit. A cursor that somebody else
   has moved meanwhile is an error: two queries with one cursor would let go what the other needs.
5. It stays when the query ends, and holds the log, until it is unsubscribed.

State: the subscription at its broker, which is durable (`client.durable_cursor`).
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
from anabranch.spark.survey import Seen, Survey

MOVE_EVERY_S = 5.0
_OPTION = "durableSubscription"

log = logging.getLogger("anabranch.spark")

Ticks = Mapping[str, int]


def owner_of(name: str) -> str:
    """The client whose durable subscription a cursor is."""
    return f"spark-cursor-{name}"


class Cursor:
    """One cursor. See the rules at the top of this module."""

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
        #: What was committed since.
        self._owed: dict[str, int] = {}

    def standing(self, seen: Seen) -> dict[str, int] | None:
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
        """Take it, unless that is done: hold everything from these ticks on."""
        if self._is_taken:
            return
        seen = survey.look()
        held = self.standing(seen)
        if held is None:
            # What the log does not have (any more) cannot be held; an archive may have it.
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
                    "cursor %r holds stream %r from tick %d on, and the query begins with %d: what"
                    " is between may be forgotten before it is read",
                    self.name,
                    stream,
                    tick,
                    first[stream],
                )
        self._is_taken = True
        self._moved_at = time.monotonic()

    def move(self, first: Ticks, survey: Survey) -> None:
        """Everything before these ticks has been dealt with."""
        self._owed = dict(first)
        if time.monotonic() - self._moved_at >= MOVE_EVERY_S:
            self.settle(survey)

    def settle(self, survey: Survey) -> None:
        """Tell the broker what it was not told yet."""
        if not self._owed:
            return
        self._moved_at = time.monotonic()
        everything = bool(self._options.streams)
        seen = survey.look(everything=everything)
        ticks = {stream: extent.end - 1 for stream, extent in seen.extents.items() if everything}
        ticks |= {s: tick - 1 for s, tick in self._owed.items() if s in seen.origins}
        try:
            self._cursor.move(ticks, seen.network)
        except CursorRefusedError as error:
            raise self._refusal(error) from error
        except ConnectError as error:
            log.warning("cursor %r is not moved for now: %s", self.name, error)
            return
        self._owed = {}

    def _refusal(self, error: CursorRefusedError) -> OptionError:
        return OptionError(_OPTION, f"{error}; does another query use {self.name!r}?")
