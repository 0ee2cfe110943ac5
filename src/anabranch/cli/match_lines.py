"""Matches of patterns as `sub` prints them: JSON with everything, or columns for people.

One match is one line. A JSON line has each contributing event as `sub` prints events, with its part
in front; where the match was too large to have them, only their places.
"""

from collections.abc import Mapping

from anabranch.cli.event_lines import Lines, document, moment, shown
from anabranch.client.patterns import Matched, PartEvent, PatternSubscription


class MatchPrinter(Lines):
    """Prints matches."""

    columns = f"{'time (UTC)':23}  {'pattern':24}  events"

    def show(self, matched: Matched) -> None:
        """Print one match."""
        self.put(lambda: match_document(matched), lambda: match_line(matched))


def match_document(matched: Matched) -> Mapping[str, object]:
    """A match as JSON has it."""
    received = matched.received
    return {
        "pattern": matched.pattern,
        "identity": matched.identity,
        "events": [_event_document(each) for each in matched.events],
        "is_whole": matched.is_whole,
        "first_ns": matched.first_ns,
        "last_ns": matched.last_ns,
        "stream": received.stream,
        "tick": received.tick,
        "time_ns": received.time_ns,
    }


def _event_document(each: PartEvent) -> Mapping[str, object]:
    place = {"part": each.part, "stream": each.stream, "tick": each.tick, "time_ns": each.time_ns}
    if each.event is None:
        return place
    return {**document(each.event, each.stream, each.tick, each.time_ns), **place}


def match_line(matched: Matched) -> str:
    """A match in columns."""
    events = "; ".join(map(_event_words, matched.events))
    return f"{moment(matched.last_ns)}  {matched.pattern:24}  {events}"


def _event_words(each: PartEvent) -> str:
    place = f"{each.part}: {each.stream} {each.tick}"
    return place if each.event is None else f"{place} {shown(each.event)}"


async def print_matches(subscription: PatternSubscription, printer: MatchPrinter) -> None:
    """Print what comes, until it is enough or the program is told to stop."""
    try:
        async for matched in subscription:
            printer.show(matched)
            if printer.is_enough:
                return
    finally:
        # What could not be printed, because nobody reads any more, comes again.
        if printer.shown == printer.given and not subscription.is_over:
            await subscription.ack()
