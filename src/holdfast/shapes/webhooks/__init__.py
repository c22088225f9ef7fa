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
acts        what people do with endpoints and deliveries, each once: checked, run in one flow, noted in the audit
checking    what is given for an endpoint, checked and sealed
endpoints   `hooks.endpoints`: create, get, list, update, delete, rotate
ranges      a range of the log is delivered once more, at its pace
portal      `hooks.portal(authorize)`: the JSON API for tenants; portal_calls has its calls
cli         `holdfast webhook`
model       endpoints, deliveries and attempts as users see them
webhooks    what `app.webhooks(...)` makes
measure     what Prometheus reads
checks      what `holdfast doctor` looks at
store       its statements; asked has those of acts; queries.sql and schema.sql beside them have the text
"""

CLI = {"webhook": f"{__name__}.cli:app"}  # groups of commands
