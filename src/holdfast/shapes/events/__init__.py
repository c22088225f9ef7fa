"""Events: one log, many subscribers. Publish in your own transaction; jobs and projections follow.

contract      event types: the options of `@event`
event         one event as a subscriber gets it
publish       the arguments of `app.publish()` become rows of the log
store         its statements; queries.sql and schema.sql beside it have the text
declare       what users declare: `@app.on(...)`, `@app.projection(...)`
projection    what a projection is declared with, and its verbs
builds        beginning, watching and abandoning rebuilds of projections
log           when there is something new, and how a worker waits for it
runner        one subscription at work: read a batch, let it take effect
consume       its events become jobs
project       its events are passed to a function, in the transaction that moves the position
calling       one call of that function, in our transaction or the user's; kinds of failure are kept apart
retry         what a projection skipped or parked is applied later
rebuild       tables built again beside the live ones, and the swap
reshard       the number of a projection's shards changes at a barrier
service       owns subscriptions and runs them, in every worker
lookups       questions that several verbs begin with
steering      acts on one subscription: pause, resume, reset, replay, skip, remove
procedures    acts on the log and its subscriptions, each once
verbs         the same from Python: `app.publish()`, `app.events`, a declared subscription
look          pages of the log, with filters
checks        checks for `holdfast doctor`
measure       Prometheus metrics of the log and its subscriptions
cli           `holdfast events`; cli_subscriptions: `holdfast subscriptions`
contracts     the schemas of each type, and whether versions are compatible
"""

# Groups of commands: the module of each, and the Typer in it.
CLI = {
    "events": f"{__name__}.cli:app",
    "subscriptions": f"{__name__}.cli_subscriptions:app",
    "projection": f"{__name__}.cli_projections:app",
    "contracts": f"{__name__}.contracts.cli:app",
}
