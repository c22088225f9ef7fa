"""Durable work on PostgreSQL: jobs that survive crashes, in the database you already have."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .public import *  # noqa: F403
    from .public import __all__ as __all__
else:
    # The names of public.py come with the first use of one: a program that wants the version, a module or a type for its
    # annotations does not load the engine.

    def __getattr__(name: str):
        import importlib
        import importlib.util

        if name.startswith("__") and name != "__all__":  # what the import system and inspect ask for
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
        try:
            value = getattr(_load(importlib.import_module), name)
        except AttributeError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
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
        return sorted({*globals(), *__getattr__("__all__")})
