"""The reader: one thread that reads the log for those who ask, one after the other.

Reading shares nothing with writing but the table of segments, so a full disk or a slow sync holds
nobody up who wants to read. Rules:

1. Answers come in the order of the questions.
2. What was written can be read; what is still waiting to be written cannot. What is synced was
   written.
3. A log that cannot be read any more is corrupt, or its disk is failing: that is told as the error
   it is, once, and nothing is read after it.

State: the questions that are not answered yet. Safe to lose.
"""

import queue
import threading
from typing import Protocol

from anabranch.core.contract import LogRead, Read
from anabranch.model.errors import AnabranchError
from anabranch.store.log import SegmentedLog
from anabranch.store.reading import read_records


class ReaderListener(Protocol):
    """Is told what was read, by the reader's thread."""

    def log_read(self, read: LogRead) -> None:
        """The answer to one question."""

    def failed(self, error: Exception) -> None:
        """Nothing more will be read."""


class Reader:
    """The thread. See the rules at the top of this module."""

    def __init__(self, log: SegmentedLog, listener: ReaderListener) -> None:
        self._log = log
        self._listener = listener
        #: None means the end.
        self._questions: queue.SimpleQueue[Read | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="anabranch-reader", daemon=True)
        self._thread.start()

    def ask(self, question: Read) -> None:
        """Read this, after what was asked before."""
        self._questions.put(question)

    def close(self) -> None:
        """Answer what was asked, and stop."""
        self._questions.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (asked := self._questions.get()) is not None:
                records = read_records(self._log.pieces, asked.first, asked.last, asked.bytes_max)
                self._listener.log_read(LogRead(asked.request, asked.first, records))
        except (OSError, AnabranchError) as error:
            self._listener.failed(error)
