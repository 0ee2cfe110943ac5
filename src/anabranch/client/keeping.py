"""Keeping patterns that end with their client, and noticing when one has ended before.

Rules:

1. While anything is to be kept, the broker is told so every `pattern_keep_s`, and at once on every
   new connection.
2. A pattern can end all the same: its broker may be cut off from the client's for too long, or
   somebody drops it. So after every new connection, and every `PATTERN_LASTS` keeps, it is asked
   for. If no broker has it any more, whoever wanted it is told. That one is silent says nothing.
3. What is wanted no more, because the subscription that it was made for was cut, is dropped.

State: what is kept. Lost with the process, and the patterns end.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from anabranch.client.defining import Definitions
from anabranch.client.errors import ClientError, PatternRefusedError
from anabranch.client.later import Later
from anabranch.client.options import PATTERN_LASTS, ClientOptions
from anabranch.model.client_frames import UNKNOWN
from anabranch.model.frame_parts import ITEMS_MAX


class Kept(NamedTuple):
    """A pattern that is kept."""

    text: str
    is_wanted: Callable[[], bool]
    #: Told why it is not there any more.
    on_gone: Callable[[str], None]
    #: Whether it ends with its client, and not only some time after it.
    is_own: bool = False


class Keeping:
    """The patterns that one client keeps. See the rules at the top of this module."""

    def __init__(self, definitions: Definitions, options: ClientOptions) -> None:
        self._definitions = definitions
        self._kept: dict[str, Kept] = {}
        self._again = Later(options.pattern_keep_s, self._keep)
        self._keeps = 0
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, pattern_id: str, kept: Kept) -> None:
        """Keep a pattern from now on."""
        if not self._is_closed:
            self._kept[pattern_id] = kept
            self._again.ask()

    def remove(self, pattern_id: str) -> Kept | None:
        """Keep it no more; returns what was kept."""
        return self._kept.pop(pattern_id, None)

    def own(self) -> list[str]:
        """Those that end with this client."""
        return [pattern_id for pattern_id, kept in self._kept.items() if kept.is_own]

    def connected(self) -> None:
        """There is a new connection to the home."""
        if self._kept:
            self._tell()
            self._look()

    def close(self) -> None:
        """Keep nothing any more."""
        self._is_closed = True
        self._kept.clear()
        self._again.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _keep(self) -> None:
        for pattern_id in [key for key, kept in self._kept.items() if not kept.is_wanted()]:
            del self._kept[pattern_id]
            self._definitions.drop_soon(pattern_id)
        if not self._kept:
            return
        self._again.ask()
        self._keeps += 1
        self._tell()
        if self._keeps % PATTERN_LASTS == 0:
            self._look()

    def _tell(self) -> None:
        ids = [*self._kept]
        for first in range(0, len(ids), ITEMS_MAX):
            self._definitions.keep(ids[first : first + ITEMS_MAX])

    def _look(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_for_all())

    async def _look_for_all(self) -> None:
        for pattern_id, kept in list(self._kept.items()):
            try:
                await self._definitions.define(pattern_id, kept.text, must_exist=True)
            except PatternRefusedError as error:
                if error.code == UNKNOWN and self._kept.pop(pattern_id, None) is not None:
                    kept.on_gone(error.reason)
            except ClientError:
                # Nobody knows; it is looked for again.
                return
