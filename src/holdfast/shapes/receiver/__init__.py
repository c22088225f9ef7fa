"""Receiver: messages from outside become jobs, each once: webhooks over HTTP, and what brokers deliver.

verify     its sender: Standard Webhooks, Stripe, GitHub, Slack, Shopify, any HMAC
message    one message as a handler gets it
parse      its bytes become a JSON value, strictly; keys from templates
intake     verified, parsed, checked against its type, ready to be written; or the reply that refuses it
gather     messages that arrive together are committed together
receiver   what `@app.receive(...)` makes: the ASGI app, `accept()` and `aaccept()`
source     the protocol of a broker
consume    reads a broker in every worker; acknowledges after the commit
declare    what users declare: `@app.receive(...)`, `@app.consume(...)`
checks     checks for `holdfast doctor`
measure    Prometheus metrics
store      its statements; queries.sql and schema.sql beside it have the text
look       questions of people: which messages were received
cli        `holdfast received`
"""

CLI = {"received": f"{__name__}.cli:app"}  # groups of commands
