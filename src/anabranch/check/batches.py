"""Checks of the guarantees for batches: each is written completely and once, and answers are true.

A *set* is the list of tokens that one commit names; its events are those staged with its tokens, in
order. The events that a sink writes with one incarnation are a batch, and must be exactly the
events of one committed set. The anomalies, which `checker` reports with the others:

- `torn-batch`: a batch lacks events of its set, has others, or has them in another order. Until the
  history is finished, a prefix of a set is not an anomaly.
- `double-batch`: two incarnations are the same batch; or a later incarnation is a lower batch.
- `lost-batch`: a batch was reported as written, but is in no log; or it was committed, the answer
  is due, and none was received.
- `wrongly-known`: an answer is false. It reports the batch as new, but the batch has other tokens
  than the commit, or was reported as new before; it reports the batch as known, but no commit named
  the written events; or it names other ticks than those of the batch.

A batch without events leaves no trace in the log and cannot be checked.
"""

from collections.abc import Iterator

from anabranch.check import history as saw
from anabranch.check.facts import Facts
from anabranch.model.names import SINK_PREFIX

#: Anomaly, stream, tick, text.
Found = tuple[str, str, int, str]
#: Token and place.
_Draft = tuple[str, int]


class _Sink:
    """The commits of one sink, and the batches it wrote."""

    def __init__(self, facts: Facts, name: str) -> None:
        self.name = name
        self.asked = facts.asked[name]
        #: The events of a set → the first commit that named it.
        self.sets: dict[tuple[_Draft, ...], saw.BatchAsked] = {}
        for ask in self.asked:
            self.sets.setdefault(drafts_of(facts, ask.tokens), ask)
        #: Incarnation → its records, by sequence.
        self.written: dict[int, list[saw.Logged]] = {}
        publisher = SINK_PREFIX + name
        entries = [entry for entry in facts.logged if entry.publisher == publisher]
        for entry in sorted(entries, key=lambda each: (each.incarnation, each.sequence)):
            self.written.setdefault(entry.incarnation, []).append(entry)
        #: Batch → its records.
        self.batches: dict[int, list[saw.Logged]] = {}


def drafts_of(facts: Facts, tokens: tuple[str, ...]) -> tuple[_Draft, ...]:
    """The events of a set."""
    return tuple(
        (token, place)
        for token in tokens
        if token in facts.drafted
        for place in range(len(facts.drafted[token].drafts))
    )


def check_batches(facts: Facts) -> Iterator[Found]:
    """Every anomaly of every sink."""
    for name in facts.asked:
        sink = _Sink(facts, name)
        yield from _check_written(facts, sink)
        for told in facts.told[name]:
            yield from _check_told(facts, sink, told)
        yield from _check_answers(facts, sink)


def _check_written(facts: Facts, sink: _Sink) -> Iterator[Found]:
    highest = -1
    for incarnation, entries in sink.written.items():
        drafts = tuple(("", 0) if entry.draft is None else entry.draft for entry in entries)
        place = (entries[0].stream, entries[0].tick)
        what = f"{sink.name}:{incarnation} has {len(drafts)} events"
        asked = sink.sets.get(drafts)
        if asked is None:
            is_under_way = facts.finished == float("inf") and any(
                each[: len(drafts)] == drafts for each in sink.sets
            )
            if not is_under_way:
                yield "torn-batch", *place, f"{what}, which no commit named together"
        elif asked.batch in sink.batches:
            yield "double-batch", *place, f"{what}, but batch {asked.batch} was already written"
        else:
            sink.batches[asked.batch] = entries
            if asked.batch < highest:
                yield "double-batch", *place, f"{what}, batch {asked.batch} after {highest}"
            highest = max(highest, asked.batch)


def _check_told(facts: Facts, sink: _Sink, told: saw.BatchTold) -> Iterator[Found]:
    what = f"batch {told.batch} of {sink.name}"
    drafts = drafts_of(facts, told.tokens)
    asks = [each for each in sink.asked if each.batch == told.batch and each.time <= told.time]
    sets = [drafts_of(facts, each.tokens) for each in asks] if told.was_known else [drafts]
    entries = sink.batches.get(told.batch)
    if entries is None:
        if all(sets):
            yield "lost-batch", "", 0, f"{what} was reported as written, but is in no log"
        return
    place = (entries[0].stream, entries[0].tick)
    there = tuple(entry.draft for entry in entries)
    if not told.was_known and there != drafts:
        yield "wrongly-known", *place, f"{what} has other events than its commit"
    if told.was_known and there not in sets:
        yield "wrongly-known", *place, f"no commit named the events of {what}"
    ticks = [entry.tick for entry in entries]
    if (told.first or not told.was_known) and (told.first, told.last) != (ticks[0], ticks[-1]):
        named = f"{told.first} to {told.last}, but has {ticks[0]} to {ticks[-1]}"
        yield "wrongly-known", *place, f"{what} was reported with ticks {named}"


def _check_answers(facts: Facts, sink: _Sink) -> Iterator[Found]:
    told = [each.batch for each in facts.told[sink.name]]
    unknown = [each.batch for each in facts.told[sink.name] if not each.was_known]
    for batch in sorted({batch for batch in unknown if unknown.count(batch) > 1}):
        yield "wrongly-known", "", 0, f"batch {batch} of {sink.name} was reported as new twice"
    latest = {ask.batch: ask for ask in sink.asked}
    for batch, ask in latest.items():
        if batch not in told and sink.name not in facts.sinks_left and facts.is_due(ask.time):
            text = f"batch {batch} of {sink.name} was committed, but never answered"
            yield "lost-batch", ask.broker, 0, text
