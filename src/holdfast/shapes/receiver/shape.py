"""What the receiver adds to the engine. It loads all of its code, so an app that only enqueues does without."""

from ...shape import Shape
from . import CLI
from .checks import CHECKS
from .consume import services
from .measure import MEASURES
from .store import prune, prune_sources

SHAPE = Shape(
    "receiver",
    services=services,
    prunes={"received": prune, "sources": prune_sources},
    checks=CHECKS,
    measures=MEASURES,
    cli=CLI,
)
