"""What webhooks add to the engine. It loads all of their code, so an app that only enqueues does without."""

from ...shape import Shape
from . import CLI, store_acts
from .checks import CHECKS
from .declare import services
from .measure import MEASURES
from .store import prune, settle

SHAPE = Shape(
    "webhooks",
    services=services,
    checks=CHECKS,
    prunes={"webhook_attempts": prune, "webhook_requests": store_acts.prune},
    cli=CLI,
    recorders={"webhook_attempts": settle},
    measures=MEASURES,
    pages=f"{__package__}.pages:PAGES",
)
