"""Staged events: chunks of events under tokens, waiting for a commit.

A client that stages events chooses a *token* for them, unique in the network, and sends them in
chunks. A later commit names the token.

Rules

1. Chunks arrive in order, from index 0; the last one is marked and completes the token.
2. Every chunk has its own row, so nothing is written twice. The rows of a token are deleted from
   the last chunk to the first: the rest that a crash may leave is incomplete, and no commit accepts
   it.
3. Staged events are also in memory, once, as the bytes of their rows. They are limited by
   `stage_bytes_max` and `stage_tokens_max` in total, and by `client_stage_bytes_max` and
   `client_stage_tokens_max` per client. Events are decoded when a batch takes them. A chunk counts
   for some bytes even if it is empty. Tokens in a batch still count for their bytes, but no longer
   for their number.
4. A token to which nothing was added for `stage_keep_s` expires, unless a batch has *taken* it. A
   clock that went back between two lives does not extend that time.
5. A chunk that cannot be read, or is missing, ends its token: the chunks after it are set aside
   with it, and the rest is incomplete, so no commit accepts it.

Table `stage`: token NUL index → [time, whether it is the last, drafts]. Staged events survive a
crash once they are synced.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from anabranch.core.catalog_recovery import decoded, number_in, set_aside
from anabranch.core.contract import DamagedRecord, Put, Recovered
from anabranch.core.options import Options
from anabranch.model.encoding import check_draft
from anabranch.model.limits import STORED_LIMITS
from anabranch.model.names import check_name

TABLE = "stage"
#: Approximate overhead of a chunk, and of an event in it.
_CHUNK_BYTES = 256
_EVENT_BYTES = 64

_INDEX_MAX = 1 << 62
_NAME_BYTES_MAX = 65_535
#: Stored drafts were checked on arrival; now they only have to decode, within any limits.
_STORED_DRAFT_LIMITS = replace(STORED_LIMITS, name_bytes_max=_NAME_BYTES_MAX)

_encoder = msgspec.msgpack.Encoder()


class ChunkRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of the table `stage`."""

    time_ns: int
    is_last: bool
    drafts: list[bytes]
    #: The client that staged it.
    client: str = ""


_decoder = msgspec.msgpack.Decoder(ChunkRow)


class StagedChunk(msgspec.Struct, frozen=True, eq=False):
    """One chunk: its encoded row, and the properties that are needed without decoding it."""

    data: bytes
    events: int
    #: Bytes that count against the quotas.
    size: int
    time_ns: int
    is_last: bool
    client: str

    def drafts(self) -> list[bytes]:
        """Decode its events; callers should not keep the copy."""
        return _decoder.decode(self.data).drafts


def _chunk(data: bytes, row: ChunkRow) -> StagedChunk:
    size = size_of(row.drafts)
    return StagedChunk(data, len(row.drafts), size, row.time_ns, row.is_last, row.client)


class StagedToken:
    """The events staged under one token."""

    __slots__ = ("chunks", "client", "events", "is_complete", "name", "size", "time_s")

    def __init__(self, name: str, client: str) -> None:
        self.name = name
        #: The client that staged its first chunk; its quota is charged.
        self.client = client
        self.chunks: list[StagedChunk] = []
        self.is_complete = False
        #: Arrival of the last chunk.
        self.time_s = 0.0
        #: Totals over all chunks; the size is in bytes.
        self.events = 0
        self.size = 0

    def add(self, chunk: StagedChunk, time_s: float) -> None:
        """Add the next chunk."""
        self.chunks.append(chunk)
        self.is_complete = chunk.is_last
        self.time_s = time_s
        self.events += chunk.events
        self.size += chunk.size

    def key(self, index: int) -> str:
        return f"{self.name}\0{index}"


class StagedTokens:
    """The staged events of one origin. See the rules at the top of this module."""

    __slots__ = ("_bytes_by_client", "_open", "_options", "_size", "_tokens_by_client")

    def __init__(self, recovered: Recovered, options: Options, now: float) -> None:
        self._options = options
        #: Token → staged events that no batch has taken, by arrival of the last chunk.
        self._open: dict[str, StagedToken] = {}
        #: Their bytes, including those that batches have taken.
        self._size = 0
        #: The same per client.
        self._bytes_by_client: dict[str, int] = {}
        #: Client → number of its tokens in `_open`.
        self._tokens_by_client: dict[str, int] = {}
        found = [_token(*item, now) for item in _stored(recovered).items()]
        for token in sorted(found, key=lambda item: item.time_s):
            self._put(token)
            self._count(token.client, token.size)

    def _put(self, token: StagedToken) -> None:
        self._open[token.name] = token
        _add(self._tokens_by_client, token.client, 1)

    def _pop(self, name: str) -> StagedToken | None:
        token = self._open.pop(name, None)
        if token is not None:
            _add(self._tokens_by_client, token.client, -1)
        return token

    def _count(self, client: str, size: int) -> None:
        self._size += size
        _add(self._bytes_by_client, client, size)

    def find(self, name: str) -> StagedToken | None:
        """The token of this name, if it exists and no batch has taken it."""
        return self._open.get(name)

    @property
    def count(self) -> int:
        """The number of tokens that no batch has taken."""
        return len(self._open)

    @property
    def size(self) -> int:
        """The bytes of all staged events, including those of batches in progress."""
        return self._size

    def exceeds_quota(self, name: str, drafts: list[bytes]) -> bool:
        """Whether a token with this chunk exceeds the whole quota."""
        token = self._open.get(name)
        size = size_of(drafts) + (0 if token is None else token.size)
        return size > min(self._options.stage_bytes_max, self._options.client_stage_bytes_max)

    def space_refusal(self, name: str, drafts: list[bytes], client: str) -> str:
        """Why there is no space for a client's chunk; "" if there is."""
        token, quota = self._open.get(name), self._options.client_stage_bytes_max
        owner = client if token is None else token.client
        size = self._bytes_by_client.get(owner, 0)
        if size + size_of(drafts) > quota:
            return f"client {owner!r} has staged {size} of {quota} bytes (client_stage_bytes_max)"
        if self._size + size_of(drafts) > self._options.stage_bytes_max:
            bytes_max = self._options.stage_bytes_max
            return f"{self._size} of {bytes_max} bytes are staged (stage_bytes_max)"
        return "" if token is not None else self._token_refusal(client)

    def _token_refusal(self, client: str) -> str:
        count, quota = self._tokens_by_client.get(client, 0), self._options.client_stage_tokens_max
        if count >= quota:
            return (
                f"client {client!r} has staged {count} of {quota} tokens (client_stage_tokens_max)"
            )
        if len(self._open) >= self._options.stage_tokens_max:
            return f"{len(self._open)} tokens are staged, the maximum (stage_tokens_max)"
        return ""

    def add(self, now: float, name: str, drafts: list[bytes], is_last: bool, client: str) -> Put:
        """Add the next chunk of a token; returns the put for it."""
        # The token with the latest chunk moves to the end.
        token = self._pop(name) or StagedToken(name, client)
        self._put(token)
        key = token.key(len(token.chunks))
        row = ChunkRow(int(now * 1e9), is_last, drafts, token.client)
        chunk = _chunk(_encoder.encode(row), row)
        token.add(chunk, now)
        self._count(token.client, chunk.size)
        return Put(TABLE, key, chunk.data)

    def take(self, names: Iterable[str]) -> list[StagedToken]:
        """Remove those of these tokens that exist, for a batch."""
        found = map(self._pop, names)
        return [token for token in found if token is not None]

    def drop(self, tokens: Iterable[StagedToken]) -> list[Put]:
        """Delete tokens that were taken; returns the puts for that."""
        puts = []
        for token in tokens:
            self._count(token.client, -token.size)
            places = reversed(range(len(token.chunks)))
            puts += [Put(TABLE, token.key(index), None) for index in places]
        return puts

    def expired(self, now: float) -> list[str]:
        """The tokens that have expired."""
        names = []
        for token in self._open.values():
            if token.time_s + self._options.stage_keep_s > now:
                break
            names.append(token.name)
        return names

    def next_expiry(self) -> float | None:
        """When the next token expires."""
        first = next(iter(self._open.values()), None)
        return None if first is None else first.time_s + self._options.stage_keep_s


def _add(counts: dict[str, int], client: str, more: int) -> None:
    count = counts.get(client, 0) + more
    assert count >= 0, client
    if count:
        counts[client] = count
    else:
        counts.pop(client, None)


def size_of(drafts: list[bytes]) -> int:
    """The bytes for which a chunk of these drafts counts."""
    return _CHUNK_BYTES + _EVENT_BYTES * len(drafts) + sum(map(len, drafts))


def _stored(recovered: Recovered) -> dict[str, list[StagedChunk]]:
    """Token → its chunks up to the first gap; later chunks are set aside."""
    good, bad = decoded(recovered, TABLE, _read)
    chunks: dict[str, dict[int, StagedChunk]] = {}
    for name, index, chunk in good.values():
        chunks.setdefault(name, {})[index] = chunk
    whole: dict[str, list[StagedChunk]] = {}
    raw = recovered.catalog.get(TABLE, {})
    for name, rows in chunks.items():
        whole[name] = [rows[index] for index in range(len(rows)) if index in rows]
        first = next((index for index in range(len(rows)) if index not in rows), len(rows))
        del whole[name][first:]
        for index in sorted(index for index in rows if index > first):
            key = f"{name}\0{index}"
            reason = f"chunk {first} of its token, before it, is missing"
            bad.append(DamagedRecord(TABLE, key, raw[key], reason))
    for record in bad:
        set_aside(recovered, record)
    return {name: rows for name, rows in whole.items() if rows}


def _read(key: str, value: bytes) -> tuple[str, int, StagedChunk]:
    name, _, index = key.rpartition("\0")
    check_name(name, "the token", _NAME_BYTES_MAX)
    row = _decoder.decode(value)
    for draft in row.drafts:
        check_draft(draft, _STORED_DRAFT_LIMITS)
    return name, number_in(index, _INDEX_MAX), _chunk(value, row)


def _token(name: str, chunks: list[StagedChunk], now: float) -> StagedToken:
    token = StagedToken(name, chunks[0].client)
    for chunk in chunks:
        token.add(chunk, min(chunk.time_ns / 1e9, now))
    return token
