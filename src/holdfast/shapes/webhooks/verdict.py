"""The meaning of a reply, or of none, for a delivery and its endpoint: one function, without any I/O."""

from dataclasses import dataclass
from datetime import datetime

from ...egress import Reply, SendFailed, retry_after

LONGEST_WAIT = 6 * 3600.0  # that a server may request
MOST_REFUSED = 3  # in a row, until a delivery fails for good
_ASKS = (429, 503)


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: str  # delivered or failed
    why: str = ""  # it failed, in few words
    error: str | None = None  # the same as a code; None: the status is enough
    detail: str | None = None  # for operators
    wait: float | None = None  # seconds that the server requested
    disable: str | None = None  # why the endpoint is disabled
    is_final: bool = False  # no further attempt, whatever is left
    blames: bool = True  # the endpoint, for the failure


def judge(result: Reply | SendFailed, refused: int, now: datetime, *, control: bool = False) -> Verdict:
    """`refused`: how often in a row the address of this delivery was refused before. `control`: the header
    `webhook-delivery` of an unsuccessful reply may end the delivery, or disable the endpoint."""
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
    asked = result.headers.get("webhook-delivery", "").strip().lower() if control else ""
    if asked == "disable":
        why = f"HTTP {status}: the endpoint asks to be disabled"
        return Verdict("failed", why, disable="asked_for", is_final=True)
    if asked == "abort-message":
        why = f"HTTP {status}: the endpoint asks for no further attempt"
        return Verdict("failed", why, is_final=True, blames=False)
    if 300 <= status < 400:
        return Verdict(
            "failed", f"HTTP {status}: a redirect is not followed, change the URL of the endpoint", "redirect"
        )
    if status == 410:
        return Verdict("failed", "HTTP 410: the endpoint is gone", disable="gone", is_final=True)
    wait = retry_after(result.headers, now, longest=LONGEST_WAIT) if status in _ASKS else None
    return Verdict("failed", f"HTTP {status}", wait=wait)
