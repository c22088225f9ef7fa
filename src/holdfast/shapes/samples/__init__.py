"""Samples: how each queue stood in each minute, for thirty days. What operators ask is in operate/samples.py.

service    takes a sample each minute: whichever worker comes first
measure    what Prometheus reads
checks     what `holdfast doctor` asks
"""

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
