"""Relays: events leave the database for a broker, in the order of their keys, each at least once.

declare   what users declare: `app.relay(...)`
spec      the same as a value
message   where an event goes, its bytes and headers
lanes     what was read and not yet passed: who may be sent, how far the cursor may move
link      the connection to the destination
breaker   a destination that is away
aside     events that wait aside with their key, and are sent later
relay     the loop
cli       `holdfast relays`
measure   what Prometheus counts
"""

CLI = {"relays": f"{__name__}.cli:app"}  # groups of commands
