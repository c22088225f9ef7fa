"""What samples add to the engine. It loads all of their code, so an app that only enqueues does without."""

from ...shape import Shape
from ...store.samples import prune_samples
from .checks import CHECKS
from .measure import MEASURES
from .service import Sampler

SHAPE = Shape(
    "samples",
    services=lambda database, tasks: [Sampler(database)],
    prunes={"samples": prune_samples},
    checks=CHECKS,
    measures=MEASURES,
)
