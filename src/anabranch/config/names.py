"""What networks, sites and brokers may be called in a network file.

A broker's name becomes a directory, a name in a certificate and a word on the command line, so it
is plainer than a name in an event: 1 to 63 ASCII letters, digits, `-`, `_` and `.`, beginning with
a letter or a digit. A site may also have `*`, as the sites do that a tree of brokers makes.
"""

import re

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.*-]{0,63}")
_RULE = "1 to 63 of a–z, A–Z, 0–9, '-', '_' and '.', beginning with a letter or digit"


def name_problem(name: str) -> str:
    """Why this cannot name a network or a broker, or ""."""
    return "" if _PLAIN.fullmatch(name) else f"{name[:80]!r} cannot be a name; use {_RULE}"


def site_name_problem(name: str) -> str:
    """Why this cannot name a site, or ""."""
    return "" if _SITE.fullmatch(name) else f"{name[:80]!r} cannot be a name; use {_RULE}"
