"""Webhooks: events leave the database for the HTTP endpoints of tenants.

declare     declarations of users: `app.webhooks(...)`
spec        the same as a value
registry    which endpoints want an event
fan_out     events become deliveries and jobs, in the transaction that moves the position
loading     what attempts need to know, read in batches
request     the bytes, headers and signatures of a request
verdict     what a reply means
deliver     the handler of the jobs
service     a worker's other duties for webhooks
acts        acts on endpoints and deliveries, each once: checked, run in one flow, recorded in the audit
checking    arguments for an endpoint, checked and sealed
endpoints   `hooks.endpoints`: create, get, list, update, delete, rotate
ranges      a range of the log is delivered again, at its pace
portal      `hooks.portal(authorize)`: the JSON API for tenants; portal_calls has its calls
cli         `holdfast webhook`
model       endpoints, deliveries and attempts as users see them
webhooks    what `app.webhooks(...)` makes
measure     Prometheus metrics
checks      checks for `holdfast doctor`
store       its statements; store_acts has those of acts; queries.sql and schema.sql beside them have the text
"""

CLI = {"webhook": f"{__name__}.cli:app"}  # groups of commands
