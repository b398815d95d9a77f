"""Sees inside GPU code: which code objects a file, package or image holds, for which targets.

``inventory(path)`` yields a CodeObject for each piece of GPU code and a Trouble for each place that
cannot be read; ``summarise`` counts them by target. Needs neither a GPU nor ROCm.
"""

from assembler.verify.gfx.inspection import inspect
from assembler.verify.gfx.inventory import inventory, inventory_file
from assembler.verify.gfx.model import (
    CodeObject,
    Feature,
    Form,
    Kernel,
    Kind,
    TargetSummary,
    Trouble,
    summarise,
)

__all__ = [
    "CodeObject",
    "Feature",
    "Form",
    "Kernel",
    "Kind",
    "TargetSummary",
    "Trouble",
    "inspect",
    "inventory",
    "inventory_file",
    "summarise",
]
