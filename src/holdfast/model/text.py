"""Text that is safe to store and to print."""

import re
import shlex
import traceback
from pathlib import Path
from types import TracebackType

from .outcome import ErrorText
from .shown import name_of, text_of

ERROR_BYTES = 8 * 1024 - 256  # with its kind in front, an error stays within 8 KiB
_TRACE_BYTES = 32 * 1024
_OURS = f"{Path(__file__).parents[1]}/"
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def storable(text: str, limit: int = ERROR_BYTES) -> str:
    """The text without characters that PostgreSQL refuses, cut to `limit` bytes of UTF-8."""
    if text.isascii() and len(text) <= limit and "\0" not in text:
        return text
    if len(text) > limit:
        text = text[:limit]
    clean = _UNSAFE.sub("\ufffd", text)
    raw = clean.encode("utf-8")
    return clean if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")


def printable(text: str) -> str:
    """The text with every control character made visible, so that a payload cannot drive a terminal."""
    return _CONTROL.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _from_the_handler(error: BaseException) -> TracebackType | None:
    """The traceback without Holdfast's frames before the user's code; all of it if there are no others."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    return frame or error.__traceback__


def describe(error: BaseException) -> ErrorText:
    """The error as storable text. Never raises, whatever the error's own methods do."""
    kind = name_of(type(error))
    message = text_of(error, "no message")
    try:
        trace = "".join(traceback.format_exception(type(error), error, _from_the_handler(error)))
    except BaseException as inner:  # noqa: BLE001 it asks the error for more than its text
        trace = f"<no traceback: formatting raised {name_of(type(inner))}>"
    if len(trace) > _TRACE_BYTES:
        trace = trace[: _TRACE_BYTES // 2] + "\n... cut ...\n" + trace[-_TRACE_BYTES // 2 :]
    return ErrorText(storable(kind, 200), storable(message), storable(trace, _TRACE_BYTES))


def command(*words: str) -> str:
    """A line for a shell, whatever the words contain."""
    return printable(shlex.join(words))
