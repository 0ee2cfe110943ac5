"""Mutants of origins: publishing, the log, batches, and starts."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_INTAKE = "anabranch.core.origin.publish_intake:PublishIntake"
_ORIGIN = "anabranch.core.origin.origin:Origin"
_LEDGER = "anabranch.core.origin.ledger:Ledger"
_BROKER = "anabranch.core.broker:Broker"
_PUBLISHERS = "anabranch.core.origin.publishers:Publishers"
_BATCHES = "anabranch.core.origin.batches:SinkBatches"
_INQUIRY = "anabranch.core.origin.rollback:RollbackInquiry"

MUTANTS: dict[str, Mutant] = {
    "ack-before-sync": Mutant(
        "events are confirmed before they are on disk",
        Edit(
            f"{_INTAKE}._take",
            "self._pending.add(session, key)",
            "requests.append(SendClient(session, Confirmed(*key, event_id.sequence)))",
        ),
        seed=16,
        anomaly="lost",
    ),
    "no-dedup": Mutant(
        "an event that is sent again is logged again",
        Edit(f"{_INTAKE}._publish", "elif is_known:", "elif False:"),
        seed=2,
        anomaly="duplicate",
    ),
    "emit-before-sync": Mutant(
        "ticks leave the origin before they are on disk",
        Edit(
            f"{_ORIGIN}.client_frame",
            "requests = self._intake.publish(now, session, frame, client)",
            "requests = self._intake.publish(now, session, frame, client)\n"
            "requests += self._emit(now, self._tail.last)",
        ),
        seed=17,
        anomaly="phantom",
    ),
    "vector-not-persisted": Mutant(
        "vectors are forgotten in a crash",
        Edit(f"{_LEDGER}.__init__", "self._with_marks(stored.marks)", "InterestMarks(0, {})"),
        Edit(f"{_LEDGER}._read", "elif isinstance(record, MarkRecord):", "elif False:"),
        seed=38,
        anomaly="gap",
    ),
    "release-early": Mutant(
        "the fastest edge decides what is forgotten",
        Edit(
            f"{_ORIGIN}._released",
            "self._ledger.retention.done_by_all()",
            "max(self._ledger.retention._done.values())",
        ),
        seed=0,
        anomaly="wrongly-withheld",
    ),
    "slice-lost": Mutant(
        "what is left of a slice is lost when something happens",
        Edit(
            f"{_BROKER}.handle",
            "work_max = self.config.options.step_work_max",
            "if self.has_work_left and self._stimuli:\n"
            "    self._work.clear()\n"
            "    self._long_work.clear()\n"
            "work_max = self.config.options.step_work_max",
        ),
        seed=3,
        anomaly="stuck",
    ),
    "checkpoint-lacks-publishers": Mutant(
        "a start trusts a checkpoint that does not know the publishers",
        Edit(f"{_LEDGER}.save", "*self.publishers.checkpoint(), ", ""),
        seed=10,
        anomaly="stuck",
    ),
    "vector-names-strangers": Mutant(
        "vectors name edges that have left the network",
        Edit(f"{_LEDGER}._restricted", " if edge in self._edges", ""),
        seed=30,
        anomaly="protocol-error",
    ),
    "departs-undrained": Mutant(
        "an edge leaves before others have its events",
        Edit(
            f"{_BROKER}.is_drained",
            "services.is_drained(departure) and not is_waiting",
            "True",
        ),
        seed=189,
        anomaly="lost",
    ),
    "commit-without-intent": Mutant(
        "events of a batch are appended before its intent is on disk",
        Edit(
            f"{_BATCHES}._start_batch",
            "requests.append(sink.put(row))",
            "sink.put(row)\n"
            "batch.is_intended = True\n"
            "requests += self._advance_batch(now, sink)\n"
            "return None",
        ),
        Edit(
            f"{_BATCHES}._append",
            "if batch.appended > before and (before == 0 or is_all):",
            "if False:",
        ),
        seed=31,
        anomaly="torn-batch",
    ),
    "stage-dropped-early": Mutant(
        "staged events are dropped before their batch is on disk",
        Edit(
            f"{_BATCHES}._append",
            "return requests",
            "if is_all:\n"
            "    requests += self._tokens.drop(batch.tokens)\n"
            "    batch.tokens = []\n"
            "return requests",
        ),
        seed=31,
        anomaly="torn-batch",
    ),
    "redo-forgotten": Mutant(
        "a start leaves intents as it finds them",
        Edit(f"{_BATCHES}.started", "batch.is_intended = True", "batch.is_intended = False"),
        seed=31,
        anomaly="torn-batch",
    ),
    "batch-not-persisted": Mutant(
        "a sink forgets the number of its last batch in a crash",
        Edit(f"{_BATCHES}._finish", "last=batch.last)", "last=batch.last, batch=0)"),
        Edit(
            f"{_BATCHES}._finish",
            "tokens = sink.row.tokens",
            "number, tokens = sink.row.batch, sink.row.tokens",
        ),
        Edit(
            f"{_BATCHES}._finish",
            "requests += _replies(sink, batch)",
            "sink.row = replace(sink.row, batch=number)\nrequests += _replies(sink, batch)",
        ),
        seed=11,
        anomaly="double-batch",
    ),
    "commit-told-early": Mutant(
        "a batch is told to be there before its intent is on disk",
        Edit(
            f"{_BATCHES}._start_batch",
            "self._ledger.commit.add_intent(frame.sink)",
            "self._ledger.commit.add_intent(frame.sink)\nrequests += _replies(sink, batch)",
        ),
        seed=31,
        anomaly="wrongly-known",
    ),
    "alone-forgotten-early": Mutant(
        "neighbours are told of a stream before the disk knows that its origin is not alone",
        Edit(f"{_BROKER}._greeted", "if not origin.may_announce:", "if False:"),
        seed=126,
        anomaly="stuck",
    ),
    "forgets-without-floor": Mutant(
        "a publisher is forgotten as if it had never been there",
        Edit(f"{_PUBLISHERS}.look", "if floor > self._floor:", "if False:"),
        seed=41,
        anomaly="duplicate",
        mesh_seed=104,
    ),
    "floor-not-on-disk": Mutant(
        "a crash takes the floor of forgotten publishers",
        Edit(
            f"{_PUBLISHERS}.look",
            "puts.append(Put(FLOOR_TABLE, FLOOR, _encoder.encode(floor)))",
            "pass",
        ),
        found_by="tests/unit/core/test_origin_crashes.py",
    ),
    "row-before-floor": Mutant(
        "a publisher is forgotten on disk before the floor is there",
        Edit(f"{_PUBLISHERS}.look", "return Looked(puts, gone)", "return Looked(puts[::-1], gone)"),
        found_by="tests/unit/core/origin/test_publishers.py",
    ),
    "forgets-unreleased": Mutant(
        "publishers are forgotten although the log has their events",
        Edit(f"{_PUBLISHERS}._is_gone", "and publisher.tick < oldest", ""),
        found_by="tests/unit/core/origin/test_publishers.py",
    ),
    "starts-unasked": Mutant(
        "an origin goes on with an old copy of its log",
        Edit(f"{_INQUIRY}.begin", "if not self._silent:", "if True:"),
        Edit(
            f"{_INQUIRY}.greeted",
            "made_ns = log.time_of(hello.seen) if hello.seen else None",
            "return []",
        ),
        seed=2,
        anomaly="tick-reused",
        faults="rollback",
    ),
}
