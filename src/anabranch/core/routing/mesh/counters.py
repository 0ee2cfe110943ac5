"""What a mesh router did: frames sent by kind, copies and events on their way, and what was lost.

Numbers only grow; whoever wants a rate reads twice.
"""

import msgspec

from anabranch.model.frames import LinkFrame
from anabranch.model.mesh_frames import Advertise, Bind, Branches, Copies, Routes, Seek


class Counters(msgspec.Struct):
    """Counts since the broker started."""

    routes_sent: int = 0
    seeks_sent: int = 0
    advertisements_sent: int = 0
    branches_sent: int = 0
    binds_sent: int = 0
    copies_sent: int = 0
    data_sent: int = 0
    #: Targets of the own stream to which no way was open.
    targets_unsent: int = 0
    #: Targets of copies on their way for which no neighbour was nearer.
    targets_dropped: int = 0
    #: Targets that left the tree of their copy.
    targets_moved: int = 0
    #: Copies that had taken more links than there are brokers; never, if all is right.
    hop_bound_fired: int = 0
    #: Events looked up in an index.
    matches: int = 0
    #: Those of them that were sent to more edges than must be, because too many filters would have
    #: had to be checked in one step.
    matches_assumed: int = 0
    #: Events sent to an edge whose interest was not known well enough.
    data_unfiltered: int = 0
    #: Carried messages and bindings for which there was no way.
    carries_dropped: int = 0
    #: Conjunctions that could not be compared with an origin's advertisements at once.
    comparisons_put_off: int = 0
    #: How often the own advertisements began to be too many, or too long, to be told one by one,
    advertisements_coarse: int = 0
    #: interest for an origin too much for a frame,
    bindings_coarse: int = 0
    #: and interest of an edge too much to know.
    wishes_coarse: int = 0

    def count(self, frame: LinkFrame) -> None:
        """One more frame goes out."""
        if isinstance(frame, Copies):
            self.copies_sent += 1
            self.data_sent += len(frame.data)
        elif isinstance(frame, Branches):
            self.branches_sent += 1
        elif isinstance(frame, Bind):
            self.binds_sent += 1
        elif isinstance(frame, Routes):
            self.routes_sent += 1
        elif isinstance(frame, Advertise):
            self.advertisements_sent += 1
        elif isinstance(frame, Seek):
            self.seeks_sent += 1

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return msgspec.structs.asdict(self)
