"""Events: one log, many subscribers. Publish in your own transaction; jobs and projections follow.

contract      event types: what `@event` says of a class
event         one event as a subscriber gets it
publish       what `app.publish()` is given becomes rows of the log
store         its statements; queries.sql and schema.sql beside it have the text
declare       what users declare: `@app.on(...)`, `@app.projection(...)`
projection    what a projection is declared with, and its verbs
builds        what people do with projections and their rebuilds
log           when there is something new, and how a worker waits for it
runner        one subscription at work: read a batch, let it take effect
consume       its events become jobs
project       its events go to a function, in the transaction that moves the position
calling       one call of that function, in our transaction or the user's; what fails is told apart
retry         what a projection skipped or parked is applied later
rebuild       tables made anew beside the live ones, and the swap
reshard       the number of a projection's shards changes at a barrier
service       owns subscriptions and runs them, in every worker
lookups       what several verbs ask first
steering      what people do to one subscription: pause, resume, reset, replay, skip, remove
procedures    what people do with the log and its subscriptions, each once
verbs         the same from Python: `app.publish()`, `app.events`, a declared subscription
look          what people look at in the log: pages of it, with filters
checks        what `holdfast doctor` asks
measure       what Prometheus reads of the log and its subscriptions
cli           `holdfast events`; cli_subscriptions: `holdfast subscriptions`
contracts     what the data of each type looks like, and whether versions go together
"""

# Groups of commands: the module of each, and the Typer in it.
CLI = {
    "events": f"{__name__}.cli:app",
    "subscriptions": f"{__name__}.cli_subscriptions:app",
    "projection": f"{__name__}.cli_projections:app",
    "contracts": f"{__name__}.contracts.cli:app",
}
