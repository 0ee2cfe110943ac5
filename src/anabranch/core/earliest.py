"""The first of several deadlines, some of which there may not be.

Asked after every stimulus, of every part of a broker; so it is a plain loop.
"""


def earliest(*times: float | None) -> float | None:
    """The least of them; None if there is none."""
    first: float | None = None
    for each in times:
        if each is not None and (first is None or each < first):
            first = each
    return first
