"""What relays add to the engine. It loads all of their code, so an app that only enqueues does without."""

from ...shape import Shape
from . import CLI
from .measure import MEASURES

SHAPE = Shape("relays", measures=MEASURES, cli=CLI)
