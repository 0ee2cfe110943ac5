"""Framing: a length prefix before each frame, on a stream of bytes.

    length     4 bytes, big-endian: the bytes of the frame
    frame      as encoded by `codec`

A connection delivers bytes in chunks that are unrelated to frames. A `FrameReader` is fed the
chunks as they arrive and returns the frames that are complete. Rules:

1. The frames do not depend on how the bytes are split into chunks.
2. A length of 0 or above `frame_bytes_max` raises `RemoteError` as soon as its four bytes have
   arrived. So a reader never holds more than one frame of the largest size and one chunk. It
   allocates memory for received bytes only: an announced length alone costs nothing.
3. After an error the start of the next frame is unknown: the reader is broken and raises the same
   error on every call. Complete frames of the chunk that broke it are lost, as they would be with
   the connection.
4. Bytes left in a reader when the connection ends are an incomplete frame; `release` frees them,
   and the reader accepts nothing more.
5. Frames that are complete within one chunk are extracted without another copy. The buffer of a
   large frame is freed with the frame; between two frames a reader holds nothing.

State: belongs to the connection and is lost with it.
"""

from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import DEFAULT_LIMITS, Limits

LENGTH_BYTES = 4
_LENGTH_MAX = 2 ** (8 * LENGTH_BYTES) - 1
#: The first bytes of an HTTP response, for example from an observe port.
_HTTP = int.from_bytes(b"HTTP")
#: The start of a TLS alert, from a peer that expected TLS.
_TLS_ALERT = b"\x15\x03"


def framed(data: bytes) -> bytes:
    """An encoded frame with its length prefix."""
    if not 0 < len(data) <= _LENGTH_MAX:
        raise LocalError(
            f"cannot send a frame of {len(data)} bytes; it must have 1 to {_LENGTH_MAX} bytes"
        )
    return len(data).to_bytes(LENGTH_BYTES) + data


class FrameReader:
    """Extracts the frames from the bytes of one connection. See the rules above."""

    __slots__ = ("__weakref__", "_buffer", "_bytes_max", "_failure", "_wanted", "frames")

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._bytes_max = limits.frame_bytes_max
        #: Starts with a length prefix, possibly incomplete.
        self._buffer = bytearray()
        #: The buffer holds no complete frame before it has this many bytes.
        self._wanted = LENGTH_BYTES
        #: The error that broke the reader, or "".
        self._failure = ""
        #: Number of complete frames.
        self.frames = 0

    def allow(self, bytes_max: int) -> None:
        """Set the limit from the next frame on."""
        self._bytes_max = bytes_max

    @property
    def pending_bytes(self) -> int:
        """Bytes received of an incomplete frame."""
        return len(self._buffer)

    def release(self) -> None:
        """The connection is over: free the buffer and accept nothing more."""
        self._failure = self._failure or "the connection is over"
        self._buffer = bytearray()

    def feed(self, chunk: bytes | bytearray | memoryview, frames_max: int = -1) -> list[bytes]:
        """Return the frames that this chunk completes, without their length prefixes.

        Frames beyond `frames_max` are left for the next call."""
        if self._failure:
            raise RemoteError(self._failure)
        buffer = self._buffer
        if buffer:
            buffer += chunk
            if len(buffer) < self._wanted:
                return []
            chunk = buffer
        try:
            with memoryview(chunk) as view:
                frames, end, self._wanted = _split(view, self._bytes_max, frames_max)
                if chunk is not buffer:
                    if end < len(view):
                        buffer += view[end:]
                elif end:
                    # A new buffer, so that a small frame does not keep that of a large one.
                    self._buffer = bytearray(view[end:])
        except RemoteError as error:
            self._failure = str(error)
            self._buffer = bytearray()
            raise
        self.frames += len(frames)
        return frames


def _split(view: memoryview, bytes_max: int, frames_max: int) -> tuple[list[bytes], int, int]:
    """The complete frames, where they end, and the bytes that the next frame needs from there."""
    frames: list[bytes] = []
    start, available = 0, len(view)
    while available - start >= LENGTH_BYTES:
        body = start + LENGTH_BYTES
        if len(frames) == frames_max:
            return frames, start, LENGTH_BYTES
        length = int.from_bytes(view[start:body])
        if not 0 < length <= bytes_max:
            raise RemoteError(bad_length(length, bytes_max))
        if available - body < length:
            return frames, start, LENGTH_BYTES + length
        start = body + length
        frames.append(bytes(view[body:start]))
    return frames, start, LENGTH_BYTES


def bad_length(length: int, bytes_max: int) -> str:
    if length == _HTTP:
        return "the peer answers with HTTP, as an observe port does; use the port for clients"
    if length.to_bytes(LENGTH_BYTES).startswith(_TLS_ALERT):
        return "the peer requires TLS; set whom to trust (tls=…, --ca)"
    return f"received the length of a frame of {length} bytes; 1 to {bytes_max} are allowed"
