"""Where a frame ends: lengths in front of frames, on a connection that knows only bytes.

    length     4 bytes, big-endian: the bytes of the frame
    frame      as `codec` makes it

A connection delivers these bytes in chunks that have nothing to do with frames. A `FrameReader`
is fed the chunks as they come and gives back the frames that are complete. Rules:

1. However the bytes are cut into chunks, the same frames come out.
2. A length of 0 or above `frame_bytes_max` raises `RemoteError` as soon as its four bytes are
   there. So a reader never holds more than one frame of the largest size and one chunk. It holds
   what has arrived of a frame, not what was announced: an announced length alone costs nothing.
3. After an error there is no telling where the next frame begins: the reader is dead and says the
   same again, whatever it is fed. Complete frames of the chunk that broke it go with it, as they
   would with the connection.
4. What is left in a reader when the connection ends is a frame that never came; `release` frees
   it, and the reader takes nothing more.
5. Frames that are complete within one chunk are taken from it without another copy. The buffer of
   a large frame is freed with the frame; a reader between two frames holds nothing.

A reader's state belongs to its connection and is worth nothing after it.
"""

from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import DEFAULT_LIMITS, Limits

LENGTH_BYTES = 4
_LENGTH_MAX = 2 ** (8 * LENGTH_BYTES) - 1
#: What a web server says first, an observe port among them.
_HTTP = int.from_bytes(b"HTTP")
#: How a side that wants TLS begins to say that it heard none.
_TLS_ALERT = b"\x15\x03"


def framed(data: bytes) -> bytes:
    """One encoded frame with its length in front, ready to be sent."""
    if not 0 < len(data) <= _LENGTH_MAX:
        raise LocalError(
            f"a frame of {len(data)} bytes cannot be sent; it has 1 to {_LENGTH_MAX} bytes"
        )
    return len(data).to_bytes(LENGTH_BYTES) + data


class FrameReader:
    """Finds the frames in the bytes of one connection. See the rules at the top of this module."""

    __slots__ = ("__weakref__", "_buffer", "_bytes_max", "_failure", "_wanted", "frames")

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._bytes_max = limits.frame_bytes_max
        #: Starts with a length, as far as it has come.
        self._buffer = bytearray()
        #: The buffer holds no complete frame before it has this many bytes.
        self._wanted = LENGTH_BYTES
        #: What broke the reader, or "".
        self._failure = ""
        #: Frames that were complete, since the beginning.
        self.frames = 0

    def allow(self, bytes_max: int) -> None:
        """Frames may have this many bytes from the next one on."""
        self._bytes_max = bytes_max

    @property
    def pending_bytes(self) -> int:
        """What has arrived of a frame that is not complete."""
        return len(self._buffer)

    def release(self) -> None:
        """The connection is over: free what has arrived, and take nothing more."""
        self._failure = self._failure or "the connection is over"
        self._buffer = bytearray()

    def feed(self, chunk: bytes | bytearray | memoryview, frames_max: int = -1) -> list[bytes]:
        """The frames that are complete with this chunk, each without its length.

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
                    # A new one: that of a large frame is not kept for the next, small one.
                    self._buffer = bytearray(view[end:])
        except RemoteError as error:
            self._failure = str(error)
            self._buffer = bytearray()
            raise
        self.frames += len(frames)
        return frames


def _split(view: memoryview, bytes_max: int, frames_max: int) -> tuple[list[bytes], int, int]:
    """The complete frames, where they end, and how many bytes from there on the next one needs."""
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
    """What is wrong with a length that no frame has."""
    if length == _HTTP:
        return "it answers with HTTP, as an observe port does; use the port for clients"
    if length.to_bytes(LENGTH_BYTES).startswith(_TLS_ALERT):
        return "it wants TLS; say whom to trust (tls=…, --ca)"
    return f"a frame of {length} bytes was announced; 1 to {bytes_max} are allowed"
