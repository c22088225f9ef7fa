"""What a running worker shows to the outside: health, metrics and traces. It subscribes to events.

port        the health port of a worker: a separate thread that replies to probes and scrapes
server      HTTP for it, bounded in every way
health      alive, ready, started: the three verdicts
metrics     for Prometheus: counters fed by events, gauges from the worker and the snapshot
snapshot    one bounded query of the database every few seconds, kept for all readers
tracing     a span around each attempt, below the span that enqueued the job
files       the Grafana dashboard, the alert rules and the KEDA object that come with the package
"""
