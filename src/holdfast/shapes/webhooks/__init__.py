"""Webhooks: events leave the database for the HTTP endpoints of tenants.

declare     what users declare: `app.webhooks(...)`
spec        the same as a value
registry    which endpoints want an event
fan_out     events become deliveries and jobs, in the transaction that moves the position
loading     what attempts need to know, read in batches
request     the bytes, headers and signatures of a request
verdict     what a reply means
deliver     the handler of the jobs
service     what a worker does beside that
endpoints   `hooks.endpoints`: create, get, list, update, delete, rotate
model       endpoints, deliveries and attempts as users see them
webhooks    what `app.webhooks(...)` makes
store       its statements; queries.sql and schema.sql beside it have the text
"""

from ...shape import Shape
from .declare import services
from .store import prune

SHAPE = Shape("webhooks", services=services, prunes={"webhook_attempts": prune})
