"""Durable work on PostgreSQL: jobs that survive crashes, in the database you already have."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contrib.holdfast import holdfast_database as holdfast_database
    from .contrib.http import http as http
    from .contrib.kafka import kafka as kafka
    from .contrib.kafka_source import kafka_source as kafka_source
    from .contrib.nats import nats as nats
    from .contrib.nats_source import nats_source as nats_source
    from .contrib.rabbitmq import rabbitmq as rabbitmq
    from .contrib.rabbitmq_source import rabbitmq_source as rabbitmq_source
    from .contrib.redis import redis_streams as redis_streams
    from .contrib.redis_source import redis_source as redis_source
    from .contrib.sqs import sqs as sqs
    from .contrib.sqs_source import sqs_source as sqs_source
    from .public import *  # noqa: F403
    from .public import __all__ as __all__
else:
    # The names of public.py come with the first use of one: a program that wants the version, a module or a type for its
    # annotations does not load the engine. Brokers live in contrib, a module each, which comes with the first use too.
    _BROKERS = {
        "holdfast_database": "holdfast",
        "http": "http",
        "kafka": "kafka",
        "kafka_source": "kafka_source",
        "nats": "nats",
        "nats_source": "nats_source",
        "rabbitmq": "rabbitmq",
        "rabbitmq_source": "rabbitmq_source",
        "redis_source": "redis_source",
        "redis_streams": "redis",
        "sqs": "sqs",
        "sqs_source": "sqs_source",
    }

    def __getattr__(name: str):
        import importlib
        import importlib.util

        if name.startswith("__") and name != "__all__":  # what the import system and inspect ask for
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _BROKERS:
            value = getattr(importlib.import_module(f"{__name__}.contrib.{_BROKERS[name]}"), name)
        elif importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
        else:
            value = getattr(_load(importlib.import_module), name, None)
            if value is None:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def _load(load):
        """The garbage collector waits meanwhile: all that is made stays, and it would look through it again and again."""
        import gc

        running = gc.isenabled()
        gc.disable()
        try:
            return load(f"{__name__}.public")
        finally:
            if running:
                gc.enable()

    def __dir__() -> list[str]:
        return sorted({*globals(), *_BROKERS, *__getattr__("__all__")})
