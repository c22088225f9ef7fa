"""`boundaries`: what leaves the database and what comes in, each beside the same program with nothing around it.

Relays to NATS with order per key (over 1,000 keys and over 10), to Redis, RabbitMQ and Kafka stand against the same client
that sends the very same messages, every one confirmed, as many of them on their way. Webhooks, with guard, signature and
attempt rows, stand against the bare client: to a receiver that takes 20 ms and to one that replies at once, 50 requests at a
time. A hundred endpoints of which one is dead stand against 99 good ones, a receiver against an empty ASGI app. Missing
libraries are reported, and not measured. Kafka is the mock cluster that its client brings: it has no disk, so that the rate
is that of the client.
"""

from ..context import Bench
from . import hooking, receiving, relaying


def run(bench: Bench) -> None:
    relaying.run(bench)
    hooking.run(bench)
    receiving.run(bench)
