"""What workflows add to the engine. It loads all of their code, so an app that only enqueues does without."""

from ...shape import Shape
from . import CLI
from .checks import CHECKS
from .ends import end_runs, prune
from .explaining import means
from .measure import MEASURES
from .service import services
from .store import TABLE

SHAPE = Shape(
    "workflows",
    services=services,
    prunes={"workflow_history": prune},
    recorders={TABLE: end_runs},
    checks=CHECKS,
    means=means,
    measures=MEASURES,
    cli=CLI,
    pages=f"{__package__}.pages:PAGES",
)
