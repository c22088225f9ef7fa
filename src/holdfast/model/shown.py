"""Users' values in error messages. Nothing here raises, whatever the methods of the value do."""

import reprlib
from collections.abc import Callable

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlevel = 2

# A metaclass may have a __qualname__ of its own, and that may raise. This is the one that every class has.
name_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__


def short(value: object) -> str:
    """Its repr, cut."""
    try:
        text = _short.repr(value)
        return text if type(text) is str else str.__str__(text)
    except BaseException:  # noqa: BLE001 a broken __repr__ must not hide the error we report
        return "<no repr>"


def shown(value: object) -> str:
    """Its type and its repr, cut."""
    return "None" if value is None else f"{name_of(type(value)).rpartition('.')[2]} {short(value)}"


def text_of(value: object, lacks: str) -> str:
    """str() of it, as a plain str; `lacks` names what is missing if that raises."""
    try:
        return str.__str__(str(value))
    except BaseException as error:  # noqa: BLE001
        return f"<{lacks}: __str__ raised {name_of(type(error))}>"
