"""What a reply, or that there is none, means for a delivery and its endpoint: one function, without any I/O."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ...egress import Reply, SendFailed

LONGEST_WAIT = 6 * 3600.0  # that a server may ask for
MOST_REFUSED = 3  # in a row, until a delivery fails for good
_ASKS = (429, 503)


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: str  # delivered or failed
    why: str = ""  # it failed, in few words
    error: str | None = None  # the same as a word for programs; None: the status says it
    detail: str | None = None  # for operators
    wait: float | None = None  # seconds that the server asked for
    disable: str | None = None  # why the endpoint is disabled
    is_final: bool = False  # no further attempt, whatever is left


def judge(result: Reply | SendFailed, refused: int, now: datetime) -> Verdict:
    """`refused`: how often in a row the address of this delivery was refused before."""
    if isinstance(result, SendFailed):
        if result.kind == "refused_address" and refused + 1 >= MOST_REFUSED:
            return Verdict(
                "failed",
                result.public,
                result.kind,
                result.detail,
                disable="forbidden_address",
                is_final=True,
            )
        return Verdict("failed", result.public, result.kind, result.detail)
    status = result.status
    if 200 <= status < 300:
        return Verdict("delivered")
    if 300 <= status < 400:
        return Verdict(
            "failed", f"HTTP {status}: a redirect is not followed, change the URL of the endpoint", "redirect"
        )
    if status == 410:
        return Verdict("failed", "HTTP 410: the endpoint is gone", disable="gone", is_final=True)
    wait = retry_after(result.headers, now) if status in _ASKS else None
    return Verdict("failed", f"HTTP {status}", wait=wait)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that the server asks for, at most 6 hours: a whole number or a date. None: nothing that counts."""
    text = headers.get("retry-after", "").strip()
    if not text or len(text) > 100:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT) or None
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    left = (at - now).total_seconds()
    return min(left, LONGEST_WAIT) if left > 0 and math.isfinite(left) else None
