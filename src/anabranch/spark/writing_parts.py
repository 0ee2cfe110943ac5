"""Parts of events, as columns become them when they are written.

`writing_columns` says which column becomes what, `drafts` writes rows accordingly. What is here is
what both know, and needs no Spark. This module keeps no state.
"""

from typing import Literal

import msgspec

from anabranch.model.errors import LocalError
from anabranch.spark.wanted import Kind

Role = Literal["attribute", "attributes", "timestamp", "correlationId", "contentType", "payload"]


class RowError(LocalError):
    """A row that cannot be an event."""


class Part(msgspec.Struct, frozen=True):
    """What a column becomes."""

    column: str
    #: Which column of the frame it is.
    place: int
    role: Role
    #: Of an attribute: its name. Of attributes: nothing.
    attribute: str = ""
    #: Of an attribute, or of the values of attributes.
    kind: Kind = "text"
    #: Of attributes: whether each value has a kind of its own.
    is_variant: bool = False
