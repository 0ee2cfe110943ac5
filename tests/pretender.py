"""Something that greets as a broker does, and then behaves as badly as a test wants."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anabranch.wire.codec import decode_client
from anabranch.wire.framing import FrameReader, framed
from anabranch.wire.greeting import Greeting, encode_greeting

#: Stands in an answer for the eight bytes of the number that was asked with.
REQUEST = b"REQUEST!"


@contextmanager
def pretender(
    *answers: bytes, afterwards: Callable[[socket.socket], object] = lambda _: None
) -> Iterator[str]:
    """Something that greets as a broker, and gives one answer per connection, then hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    ours = Greeting(kind="client", network="n", name="a", frame_bytes_max=2**20)

    def serve() -> None:
        for answer in answers:
            try:
                plug, _ = listener.accept()
            except OSError:
                return
            with plug:
                plug.sendall(framed(encode_greeting(ours)))
                reader = FrameReader()
                frames: list[bytes] = []
                while len(frames) < 3 and (data := plug.recv(65_536)):
                    frames += reader.feed(data)
                if len(frames) == 3:
                    asked = decode_client(frames[2])
                    request = getattr(asked, "request", 0).to_bytes(8)
                    plug.sendall(answer.replace(REQUEST, request))
                    afterwards(plug)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield "127.0.0.1:{1}".format(*listener.getsockname())
    finally:
        # Whoever waits for a connection gets one, and ends.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
