"""What models of GPU can do, as a cell was told: jobs may ask for that and not for a model."""

from typing import Annotated

from msgspec import Meta

from muster.events.base import MODELS_MAX, Event, Label, Part, Quantity, Text

Capability = Annotated[int, Meta(ge=10, le=999)]
"""A compute capability in tenths: 9.0 is 90."""
Bandwidth = Annotated[int, Meta(ge=1, le=1_000_000)]
"""Of memory, in GB/s."""


class DeviceModel(Part, frozen=True, kw_only=True):
    """One model, or one size of it: a model that is sold with several sizes of memory stands here several times."""

    model: Annotated[str, Meta(min_length=1, max_length=128)]
    """As nodes name it."""
    names: Annotated[tuple[Label, ...], Meta(max_length=16)] = ()
    """Other names that nodes have for it."""
    capability: Capability
    memory_mib: Quantity = 0
    bandwidth_gbs: Bandwidth
    nvlink_gbs: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    mig: Annotated[tuple[Label, ...], Meta(max_length=32)] = ()
    """The profiles into which it can be sliced."""


class CatalogueSet(Event, frozen=True, kw_only=True):
    """From here on the cell knows these models and no others. A job keeps the models that it was given when it was submitted."""

    models: Annotated[tuple[DeviceModel, ...], Meta(max_length=MODELS_MAX)] = ()
    by: Text = ""
