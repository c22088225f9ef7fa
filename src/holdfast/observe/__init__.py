"""What a running worker shows to the outside: health, metrics and traces. It subscribes; nothing below knows of it.

port        the health port of a worker: a thread of its own that answers probes and scrapes
server      HTTP for it, bounded in every way
health      alive, ready, started: the three verdicts
metrics     what Prometheus reads: counters fed by events, gauges from the worker and the snapshot
snapshot    one bounded look at the database now and then, kept for whoever asks
tracing     a span around each attempt, below the span that enqueued the job
files       the Grafana dashboard, the alert rules and the KEDA object that come with the package
"""
