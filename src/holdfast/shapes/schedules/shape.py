"""What schedules add to the engine. It loads all of their code, so an app that only enqueues does without."""

from ...shape import Shape
from . import CLI
from .checks import CHECKS
from .declare import check_declared, declared
from .service import Scheduler
from .store import prune_firings

SHAPE = Shape(
    "schedules",
    services=lambda database, tasks: [Scheduler(database, declared(tasks))],
    check_declared=check_declared,
    prunes={"firings": prune_firings},
    checks=CHECKS,
    cli=CLI,
    pages=f"{__package__}.pages:PAGES",
)
