"""The shapes: kinds of work on top of the engine, a folder each. What they have in common is in holdfast.shape.

The app, the doctor and the command line read this list and nothing else of a shape.
"""

from ..operate.doctor.run import CHECKS as ENGINE_CHECKS
from ..shape import Shape
from . import events, operations, receiver, relays, samples, schedules, webhooks, workflows
from .events.contracts.verbs import HasContracts
from .events.declare import Subscribing
from .events.publish import outgoing, type_of_event
from .events.verbs import HasEvents
from .receiver.declare import Receiving
from .relays.declare import Relaying
from .schedules.declare import Scheduling
from .schedules.verbs import HasSchedules
from .webhooks.declare import Hooking
from .workflows.declare import Workflows
from .workflows.outgoing import Events

SHAPES: tuple[Shape, ...] = (
    schedules.SHAPE,
    events.SHAPE,
    relays.SHAPE,
    receiver.SHAPE,
    webhooks.SHAPE,
    workflows.SHAPE,
    operations.SHAPE,
    samples.SHAPE,
)
MEANS = tuple(shape.means for shape in SHAPES if shape.means is not None)
CHECKS = (*ENGINE_CHECKS, *(check for shape in SHAPES for check in shape.checks))


class Registry(Scheduling, Relaying, Hooking, Subscribing, Receiving, Workflows):
    """Tasks for apps to include: `billing = Registry("billing")`, then `Holdfast(..., include=[billing])`.

    A registry that several apps include writes its jobs through the newest of them.
    """

    _events = Events(type_of_event, outgoing)  # for wf.publish()


class Verbs(HasSchedules, HasEvents, HasContracts):
    """What an app can do beside its tasks, shape by shape."""
