"""The shapes: kinds of work on top of the engine, a folder each. Their common seam is holdfast.shape.

The app, the doctor and the command line read these lists and nothing else of a shape:
SHAPES      what each shape adds to a worker
MEANS       the reasons that they add to `holdfast explain`
CHECKS      the doctor's checks, the engine's first
They are loaded at first use, because they bring all the code of a worker: a process that only enqueues needs none.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..operate.doctor.finding import Check
    from ..operate.reason import Means
    from ..shape import Shape

    SHAPES: tuple[Shape, ...]
    MEANS: tuple[Means, ...]
    CHECKS: tuple[Check, ...]
FOLDERS = ("schedules", "events", "relays", "receiver", "webhooks", "workflows", "operations", "samples")


def commands() -> dict[str, str]:
    """The groups of commands of all shapes, by name: the module of each, and the Typer in it."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        found |= getattr(importlib.import_module(f"{__name__}.{folder}"), "CLI", {})
    return found


def __getattr__(name: str) -> Any:
    if name not in ("SHAPES", "MEANS", "CHECKS"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    shapes = tuple(importlib.import_module(f"{__name__}.{folder}.shape").SHAPE for folder in FOLDERS)
    of_engine = importlib.import_module("holdfast.operate.doctor.run").CHECKS
    globals().update(
        SHAPES=shapes,
        MEANS=tuple(shape.means for shape in shapes if shape.means is not None),
        CHECKS=(*of_engine, *(check for shape in shapes for check in shape.checks)),
    )
    return globals()[name]
