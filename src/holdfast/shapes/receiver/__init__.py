"""Receiver: messages from outside become jobs, each once: webhooks over HTTP, and what brokers deliver.

verify     who sent it: Standard Webhooks, Stripe, GitHub, Slack, Shopify, any HMAC
message    one message as a handler gets it
parse      its bytes become a JSON value, strictly; the key that a template makes
intake     verified, parsed, checked against its type, ready to be written; or the reply that refuses it
gather     messages that come together are committed together
receiver   what `@app.receive(...)` makes: the ASGI app, `accept()` and `aaccept()`
source     what a broker has to be
consume    reads a broker in every worker; acknowledges after the commit
declare    what users declare: `@app.receive(...)`, `@app.consume(...)`
checks     what `holdfast doctor` says of sources
measure    what Prometheus reads
store      its statements; queries.sql and schema.sql beside it have the text
look       what people look at: which messages were received
cli        `holdfast received`
"""

CLI = {"received": f"{__name__}.cli:app"}  # groups of commands
