"""What users declare and do, assembled from the shapes: Registry, Verbs and Webhooks."""

from collections.abc import Callable

from .db.database import Database
from .shapes.events.contracts.verbs import HasContracts
from .shapes.events.declare import Subscribing
from .shapes.events.publish import outgoing, type_of_event
from .shapes.events.verbs import Followed, HasEvents
from .shapes.receiver.declare import Receiving
from .shapes.relays.declare import Relaying
from .shapes.schedules.declare import Scheduling
from .shapes.schedules.verbs import HasSchedules
from .shapes.webhooks.declare import WebhookDeclarations
from .shapes.webhooks.spec import Spec
from .shapes.webhooks.webhooks import Hooks
from .shapes.workflows.declare import Workflows
from .shapes.workflows.outgoing import Events


class Webhooks(Hooks, Followed):
    """`hooks = app.webhooks(on=["order.*"])`, then `hooks.endpoints.create(...)`. It is the subscription that makes
    deliveries out of events, so it has `lag()`, `pause()`, `reset()` and `replay()` too."""

    def __init__(self, spec: Spec, subscription: Followed, database: Callable[[], Database]) -> None:
        Followed.__init__(self, subscription.name, subscription._binding)
        Hooks.__init__(self, spec, database)

    @property
    def subscription(self) -> Followed:
        return self


class Registry(Scheduling, Relaying, WebhookDeclarations[Webhooks], Subscribing, Receiving, Workflows):
    """Tasks for apps to include: `billing = Registry("billing")`, then `Holdfast(..., include=[billing])`.

    A registry that several apps include writes its jobs through the newest of them.
    """

    _events = Events(type_of_event, outgoing)  # for wf.publish()
    _webhooks = Webhooks


class Verbs(HasSchedules, HasEvents, HasContracts):
    """The verbs of an app apart from its tasks, shape by shape."""
