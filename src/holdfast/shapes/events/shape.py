"""What events add to the engine. It loads all of their code, so an app that only enqueues does without."""

from ...shape import Shape
from . import CLI
from .checks import CHECKS
from .measure import MEASURES
from .service import services
from .store import empty_slots, prune_ids

SHAPE = Shape(
    "events",
    services=services,
    prunes={"events": empty_slots, "event_ids": prune_ids},
    checks=CHECKS,
    measures=MEASURES,
    cli=CLI,
    pages=f"{__package__}.pages:PAGES",
)
