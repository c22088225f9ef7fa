"""What users declare and do, put together out of the shapes: Registry and Verbs."""

from .shapes.events.contracts.verbs import HasContracts
from .shapes.events.declare import Subscribing
from .shapes.events.publish import outgoing, type_of_event
from .shapes.events.verbs import HasEvents
from .shapes.receiver.declare import Receiving
from .shapes.relays.declare import Relaying
from .shapes.schedules.declare import Scheduling
from .shapes.schedules.verbs import HasSchedules
from .shapes.webhooks.declare import Hooking
from .shapes.workflows.declare import Workflows
from .shapes.workflows.outgoing import Events


class Registry(Scheduling, Relaying, Hooking, Subscribing, Receiving, Workflows):
    """Tasks for apps to include: `billing = Registry("billing")`, then `Holdfast(..., include=[billing])`.

    A registry that several apps include writes its jobs through the newest of them.
    """

    _events = Events(type_of_event, outgoing)  # for wf.publish()


class Verbs(HasSchedules, HasEvents, HasContracts):
    """What an app can do beside its tasks, shape by shape."""
