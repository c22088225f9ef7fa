"""Relays: events leave the database for a broker, in the order of their keys, each at least once.

declare   declarations of users: `app.relay(...)`
spec      the same as a value
message   where an event goes, its bytes and headers
lanes     events that were read and not yet passed: which may be sent, how far the cursor may move
link      the connection to the destination
breaker   a destination that is unreachable
aside     events that wait aside with their key, and are sent later
relay     the loop
cli       `holdfast relays`
measure   Prometheus counters
"""

CLI = {"relays": f"{__name__}.cli:app"}  # groups of commands
