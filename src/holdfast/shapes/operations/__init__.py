"""Operations: acts over many that an operator began, carried on by the workers. What they do is in operate/operations.py.

service    takes up what nobody runs, in every worker
measure    what Prometheus reads
checks     what `holdfast doctor` asks
"""

from ...shape import Shape
from ...store.operations import prune_operations
from .checks import CHECKS
from .measure import MEASURES
from .service import Operations

SHAPE = Shape(
    "operations",
    services=lambda database, tasks: [Operations(database)],
    prunes={"operations": prune_operations},
    checks=CHECKS,
    measures=MEASURES,
)
