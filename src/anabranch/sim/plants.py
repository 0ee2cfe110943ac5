"""Planted bugs: mistakes that can be switched on by name, to prove that the checker can fail.

Each is one condition at the exact place where the mistake could be made. `anabranch sim --plant
NAME` must find it within `SEEDS_MAX` seeds; a test runs every one of them on the seed recorded
here, which is known to show it.
"""

#: Seeds within which each planted bug is found.
SEEDS_MAX = 200

#: Name → what is wrong, and a seed that shows it.
PLANTS: dict[str, tuple[str, int]] = {}
