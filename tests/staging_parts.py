"""An origin that events are staged at, on the disk of `origin_parts`; crashes can be chosen."""

from typing import TypeVar

from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.core.part_requests import PartRequest
from anabranch.model.client_frames import AnyClientFrame, Commit, Committed, Discard, Refused, Stage
from anabranch.model.encoding import decode_event, encode_draft
from anabranch.model.event import Control, Event
from tests.origin_parts import Driver

Frame = TypeVar("Frame", bound=AnyClientFrame)


def draft(n: int, *, payload: bytes = b"", control: Control | None = None) -> bytes:
    return encode_draft(Event({"n": n}, payload=payload, control=control or Control()))


class Stager(Driver):
    """An origin, its disk, and clients who stage and commit."""

    _request = 0

    def say(
        self, frame: AnyClientFrame, session: int = 1, client: str = "writer"
    ) -> list[PartRequest]:
        assert isinstance(frame, Stage | Commit | Discard)
        return self.do(self.origin.client_frame(self.now, session, frame, client))

    def stage(
        self, token: str, *ns: int, index: int = 0, is_last: bool = True, session: int = 1
    ) -> int:
        """Stage a chunk; the number of the request."""
        self._request += 1
        bodies = [draft(n) for n in ns]
        self.say(Stage(self._request, token, index, bodies, is_last), session)
        return self._request

    def staged(self, token: str, *ns: int) -> None:
        """The same, and let it be on disk."""
        self.stage(token, *ns)
        self.sync_all()

    def commit(
        self, batch: int, *tokens: str, sink: str = "sink", query: str = "q", session: int = 1
    ) -> int:
        self._request += 1
        self.say(Commit(self._request, sink, query, batch, tokens), session)
        return self._request

    def committed(
        self, batch: int, *tokens: str, sink: str = "sink", query: str = "q"
    ) -> Committed:
        """Commit, let it be on disk, and return the answer."""
        request = self.commit(batch, *tokens, sink=sink, query=query)
        self.sync_all()
        answer = self.answer(request)
        assert isinstance(answer, Committed), answer
        return answer

    def answers(self, request: int) -> list[AnyClientFrame]:
        return [frame for _, frame in self.sent if getattr(frame, "request", 0) == request]

    def answer(self, request: int) -> AnyClientFrame | None:
        """The one answer to a request, if it is there."""
        found = self.answers(request)
        assert len(found) <= 1, found
        return found[0] if found else None

    def refusal(self, request: int) -> Refused:
        answer = self.answer(request)
        assert isinstance(answer, Refused), answer
        return answer

    def logged(self, sink: str = "sink") -> list[tuple[int, int, int]]:
        """(incarnation, sequence, n) of the events of a sink, as the log has them."""
        found = []
        for data in self.disk.records:
            record = decode_record(data)
            if isinstance(record, EventRecord):
                event = decode_event(record.body)
                assert event.id is not None
                if event.id.publisher == f"sink/{sink}":
                    n = event["n"]
                    assert isinstance(n, int)
                    found.append((event.id.incarnation, event.id.sequence, n))
        return found

    def rows(self, table: str) -> dict[str, bytes]:
        """What the catalog has on disk."""
        return self.disk.catalog.get(table, {})

    def crash_keeping(self, records: int, puts: int) -> None:
        """Lose all that is not synced but for so many records and puts, and start again."""
        disk = self.disk
        kept = disk.synced + records
        assert kept <= disk.last
        del disk.records[kept + 1 - disk.first_tick :]
        disk.sync(kept, puts)
        disk.unsynced_puts.clear()
        for tick in [tick for tick in self.events if tick > kept]:
            del self.events[tick]
        for tick in [tick for tick in self.vectors if tick > kept]:
            del self.vectors[tick]
        self.start()
