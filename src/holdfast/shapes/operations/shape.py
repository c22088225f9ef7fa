"""What operations add to the engine. It loads all of their code, so an app that only enqueues does without."""

from ...shape import Shape
from ...store.dead import prune_redriven
from ...store.operations import prune_operations
from .checks import CHECKS
from .measure import MEASURES
from .service import Operations

SHAPE = Shape(
    "operations",
    services=lambda database, tasks: [Operations(database)],
    prunes={"operations": prune_operations, "redriven": prune_redriven},
    checks=CHECKS,
    measures=MEASURES,
)
