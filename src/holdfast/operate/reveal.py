"""Reveal one field of a job that is masked otherwise. The entry in the audit is written before it is shown."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from ..errors import ConfigurationError
from ..model import exact
from ..store.audit import audit
from .jobs import find_job
from .procedure import Procedure, actor, run
from .refusal import Refused
from .search import check_texts

PARTS = ("payload", "result", "metadata")
_MOST_CHARACTERS = 64 * 1024  # characters


def reveal_field(job_id: UUID, field: str, reason: str) -> Procedure[str]:
    """The value at `payload.customer.iban`, by names from the outside in. A text as it is, other values as JSON."""
    check_texts({"field": field, "reason": reason})
    if not reason.strip():
        raise ConfigurationError("say why: a field is revealed with a reason, which is kept in the audit")
    part, *names = field.strip().split(".")
    if part not in PARTS or not all(names) or not names:
        raise ConfigurationError(
            f"field takes a name in {', '.join(PARTS)}, such as payload.customer.iban, not {field[:80]!r}"
        )
    job = (yield from find_job(job_id)).job
    found = _at(getattr(job, part), names)
    if found is None:
        raise Refused("no_field", f"job {job_id} has no field {field[:80]!r}", id=job_id)
    who = yield from actor()
    which = {"id": str(job_id), "field": field.strip()}
    yield from run(lambda: audit(who.because(reason), "jobs reveal", which, 1))
    text = found[0] if isinstance(found[0], str) else exact.dumps(found[0], ensure_ascii=False)
    return (
        text
        if len(text) <= _MOST_CHARACTERS
        else f"{text[:_MOST_CHARACTERS]}… and {len(text) - _MOST_CHARACTERS:,} characters more"
    )


def _at(value: Any, names: list[str]) -> tuple[Any] | None:
    """None: there is nothing at that place."""
    for name in names:
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif (
            isinstance(value, list)
            and len(name) < 10
            and name.isascii()
            and name.isdigit()
            and int(name) < len(value)
        ):
            value = value[int(name)]
        else:
            return None
    return (value,)
