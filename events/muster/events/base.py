"""The bases of every event, and the bounds of what a field may hold.

An event is a frozen structure of integers, strings, booleans and tuples. There are no floats anywhere, and each
field has a bound, so that no message from outside can make the state, a cycle or a sum grow without limit. What a
bound refuses, the codec reports with the name of the field.

This module does not know which events there are; `muster.events.registry` does.
"""

from typing import Annotated, Literal, NewType

import msgspec
from msgspec import Meta

INT_MAX = 2**53
"""The largest integer in any event: what every JSON reader on earth can hold exactly."""

TASKS_MAX = 100_000
GROUPS_MAX = 64
MODELS_MAX = 256
"""Models of GPU that a group may name, and that a catalogue may hold."""
LABELS_MAX = 64
BODY_MAX_BYTES = 256 * 1024
ENVIRONMENT_MAX_BYTES = 64 * 1024
DEVICES_MAX = 64

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"
"""A name: what a DNS label may be, with dots; at most 63 characters."""

JobId = NewType("JobId", str)
"""A UUIDv7 in its usual form, made by the producer; it is also the key of the record."""

UID_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9._:]*$"
JOB_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9._]*$"

# The patterns stand in the schema and are checked by `muster.events.codec.decode_input`, at the edge: msgspec would match
# them again each time a recorded entry is read, for three times the cost of reading it.
Name = Annotated[str, Meta(min_length=1, max_length=63, extra_json_schema={"pattern": NAME_PATTERN})]
Uid = Annotated[str, Meta(min_length=1, max_length=64, extra_json_schema={"pattern": UID_PATTERN})]
JobKey = Annotated[str, Meta(min_length=1, max_length=64, extra_json_schema={"pattern": JOB_PATTERN})]
Label = Annotated[str, Meta(max_length=128)]
Profile = Annotated[str, Meta(max_length=32, pattern=r"^[1-7]g\.[1-9][0-9]{0,3}gb(\+[a-z.]{1,16})?$")]
"""A profile of slices (MIG): 3g.40gb is three of the seven compute slices of a GPU, and 40 GB."""
LabelKey = Annotated[str, Meta(min_length=1, max_length=128)]
Labels = Annotated[dict[LabelKey, Label], Meta(max_length=LABELS_MAX)]
Text = Annotated[str, Meta(max_length=1024)]
"""A sentence for a person; never read by a decision."""

Quantity = Annotated[int, Meta(ge=0, le=INT_MAX)]
Micros = Annotated[int, Meta(ge=0, le=INT_MAX)]
"""An instant or a span in microseconds."""
Priority = Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)]
TaskCount = Annotated[int, Meta(ge=1, le=TASKS_MAX)]
TaskMinimum = Annotated[int, Meta(ge=0, le=TASKS_MAX)]
InstanceIndex = Annotated[int, Meta(ge=0, le=TASKS_MAX)]
Rank = Annotated[int, Meta(ge=0, le=TASKS_MAX)]
AttemptNumber = Annotated[int, Meta(ge=1, le=INT_MAX)]
NodeRow = Annotated[int, Meta(ge=0, le=1_000_000)]
"""The number of a node's place in the state: the lowest that was free when the node registered."""
DeviceIndex = Annotated[int, Meta(ge=0, le=1_000_000)]
ExitCode = Annotated[int, Meta(ge=-1024, le=65_535)]
"""Exit status of a process; -n for signal n."""
DeviceHealth = Literal["healthy", "degraded", "failed"]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A structure inside an event."""


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happened. Its kind is the name of its class; its version stands in the registry."""
