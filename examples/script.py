"""The same without an event loop, for scripts and notebooks.

anabranch up examples/network.toml      # in another terminal
python examples/script.py
"""

from pathlib import Path

import anabranch

NETWORK = Path(__file__).with_name("network.toml")


def main() -> None:
    """Publish temperatures, and print the high ones."""
    with (
        anabranch.connect_blocking(network_file=NETWORK, name="script") as client,
        client.subscribe("temperature > 30") as alarms,
    ):
        client.publish_many({"room": n, "temperature": 20 + 5 * n} for n in range(5))
        for received in alarms:
            print("room", received.int("room"), "has", received.float("temperature"))
            if received.int("room") == 4:
                break


if __name__ == "__main__":
    main()
