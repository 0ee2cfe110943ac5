"""The same without an event loop, for scripts and notebooks.

python examples/script.py [ADDRESS]...
"""

import contextlib
import sys

import anabranch


def main(*addresses: str) -> None:
    """Publish temperatures, and print the high ones."""
    with anabranch.connect_blocking(*addresses, name="script") as client:
        alarms = client.subscribe("temperature > 30")
        client.publish_many({"room": n, "temperature": 20 + 5 * n} for n in range(5))
        for received in alarms:
            print("room", received["room"], "has", received["temperature"])
            if received["room"] == 4:
                break
        with contextlib.suppress(TimeoutError):
            alarms.get(timeout=0.2)
            print("there should be no more")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        with anabranch.embedded() as network:
            main(*network.addresses)
