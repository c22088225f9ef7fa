"""What can be done to endpoints and deliveries from the dashboard: the same acts as for tenants, by an operator."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from ...errors import ConfigurationError
from ...model.duration import parse_duration
from ...model.queue import Rate
from ...operate.procedure import Procedure, actor, run
from ...operate.wording import several
from ...pages import Act, ActResult, Field, Given, Preview
from ...tasks.taskset import TaskSet
from . import store_acts as statements
from .acts import Acts, Ranged, unknown
from .model import Delivery, Endpoint
from .model import Secret as NewSecret
from .spec import Spec

_ENDPOINT = Field("endpoint")
_RANGE = (
    _ENDPOINT,
    Field("begin", "From", hint="How long ago, such as 2h; a time; or a position of the log.", shown=True),
    Field("end", "To", required=False, hint="Empty: the end of the log.", shown=True),
    Field("only", "What", "choice", ("failed", "missing", "all"), required=False, value="failed", shown=True),
    Field("rate", "At most a second", "number", required=False, shown=True),
)


def read_id(word: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise ConfigurationError(f"{word[:60]!r} is not the id of an endpoint or a delivery") from None


def tenant_of(endpoint: UUID) -> Procedure[str]:
    found: str | None = yield from run(lambda: statements.tenant_of(endpoint))
    if found is None:
        raise unknown(endpoint, "there is")
    return found


def _become(status: str, said: str) -> Any:
    def act(given: Given) -> Procedure[ActResult]:
        endpoint = read_id(given["endpoint"])
        tenant = yield from tenant_of(endpoint)
        who = yield from actor()
        yield from run(Acts(Spec(), who).update(endpoint, tenant, status=status))
        return ActResult(f"Endpoint {endpoint} is {said}.", None, f"webhooks/{endpoint}")

    return act


def _preview_disable(given: Given) -> Procedure[Preview]:
    endpoint = read_id(given["endpoint"])
    tenant = yield from tenant_of(endpoint)
    more: dict[str, Any] = yield from run(Acts(Spec(), "web").details(endpoint, tenant))
    return Preview(
        f"Nothing more would be sent to it, and {several(more['waiting'], 'delivery', 'deliveries')} cancelled."
    )


def _ping(given: Given) -> Procedure[ActResult]:
    endpoint = read_id(given["endpoint"])
    tenant = yield from tenant_of(endpoint)
    who = yield from actor()
    made: Delivery = yield from run(Acts(Spec(), who).ping(endpoint, tenant))
    return ActResult(f"Ping {made.id} is on its way.", {"id": made.id}, f"webhooks/deliveries/{made.id}")


def _redeliver(given: Given) -> Procedure[ActResult]:
    wanted = read_id(given["delivery"])
    tenant: str | None = yield from run(lambda: statements.tenant_of_delivery(wanted))
    if tenant is None:
        raise ConfigurationError(f"there is no delivery {wanted}, or it is no longer kept")
    who = yield from actor()
    made: Delivery = yield from run(Acts(Spec(), who).redeliver(wanted, tenant))
    return ActResult(f"Delivery {made.id} is pending.", {"id": made.id}, f"webhooks/deliveries/{made.id}")


# A range: whose an event is, the code of the app says -----------------------------------------------------------------


def coded_acts(tasks: TaskSet) -> Sequence[Act]:
    """Without the code the defaults hold, as for the command line without an app."""
    declared: Sequence[tuple[Spec, object]] = tuple(tasks.declared("webhooks").values())
    spec = declared[0][0] if declared else Spec()

    def preview(given: Given) -> Procedure[Preview]:
        found = yield from _range(spec, given, dry_run=True)
        said = f"{several(found.count, 'event')} would be delivered once more, as workers have time."
        return Preview(said, found.count, fixed={"begin": str(found.after), "end": str(found.until)})

    def do(given: Given) -> Procedure[ActResult]:
        found = yield from _range(spec, given, dry_run=False)
        data = {"count": found.count, "after": found.after, "until": found.until}
        said = f"{several(found.count, 'event')} will be delivered once more."
        return ActResult(said, data, f"webhooks/{given['endpoint']}")

    return (Act("webhook redeliver-range", "Redeliver a range", do, _RANGE, _range_words, preview),)


def _range(spec: Spec, given: Given, *, dry_run: bool) -> Procedure[Ranged]:
    endpoint = read_id(given["endpoint"])
    tenant = yield from tenant_of(endpoint)
    who = yield from actor()
    end = given.get("end")
    asked = Acts(spec, who).redeliver_range(
        endpoint,
        tenant,
        _place(given["begin"], "begin"),
        None if not end else _place(end, "end"),
        given.get("only") or "failed",  # type: ignore[arg-type]  # it is checked there
        _rate(given.get("rate")),
        dry_run=dry_run,
    )
    found: Ranged = yield from run(asked)
    return found


def _place(said: str, name: str) -> int | datetime:
    """A position of the log, or a time, also as how long ago."""
    if said.isascii() and said.isdigit() and len(said) < 19:
        return int(said)
    seconds = parse_duration(said)
    if seconds is not None:
        return datetime.now(UTC) - timedelta(seconds=seconds)
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ConfigurationError(
            f"{name} must be a position, a time such as 2026-05-01T00:00Z, or how long ago, such as 2h, not {said[:40]!r}"
        )
    return at


def _rate(said: str | None) -> Rate | None:
    if not said:
        return None
    if not (said.isascii() and said.isdigit() and int(said[:9]) > 0 and len(said) < 9):
        raise ConfigurationError(f"rate must be a whole number of deliveries a second, not {said[:40]!r}")
    return Rate(int(said))


def _range_words(given: Given) -> tuple[str, ...]:
    said = [
        word
        for name, option in (("begin", "--from"), ("end", "--to"), ("only", "--only"))
        if given.get(name)
        for word in (option, given[name])
    ]
    said += ["--rate", f"{given['rate']}/s"] if given.get("rate") else []
    return ("webhook", "redeliver-range", given["endpoint"], *said, "--yes")


def _preview_rotate(given: Given) -> Procedure[Preview]:
    endpoint = read_id(given["endpoint"])
    found: Endpoint = yield from run(Acts(Spec(), "web").get(endpoint, (yield from tenant_of(endpoint))))
    return Preview(
        f"{found.url} of {found.tenant} would get a new secret, shown once. The old ones sign beside it for the time below."
    )


def _rotate(given: Given) -> Procedure[ActResult]:
    endpoint = read_id(given["endpoint"])
    tenant = yield from tenant_of(endpoint)
    who = yield from actor()
    made: NewSecret = yield from run(Acts(Spec(), who).rotate(endpoint, tenant, _overlap(given)))
    said = f"Endpoint {endpoint} has a new secret."
    return ActResult(said, {"endpoint": endpoint, "id": made.id}, f"webhooks/{endpoint}", str(made.value))


def _overlap(given: Given) -> float:
    said = given.get("overlap") or "24h"
    found = parse_duration(said)
    if found is None:
        raise ConfigurationError(f"overlap must be a span such as 24h, or 0, not {said[:40]!r}")
    return found


def _delete(given: Given) -> Procedure[ActResult]:
    endpoint = read_id(given["endpoint"])
    tenant = yield from tenant_of(endpoint)
    who = yield from actor()
    yield from run(Acts(Spec(), who).delete(endpoint, tenant))
    return ActResult(f"Endpoint {endpoint} is deleted.", None, "webhooks")


def _preview_delete(given: Given) -> Procedure[Preview]:
    endpoint = read_id(given["endpoint"])
    tenant = yield from tenant_of(endpoint)
    more: dict[str, Any] = yield from run(Acts(Spec(), "web").details(endpoint, tenant))
    waiting = several(more["waiting"], "delivery", "deliveries")
    return Preview(
        f"Endpoint {endpoint} of {tenant} would be deleted, with its secrets and {waiting} that wait.", 1
    )


def _words(verb: str, field: str = "endpoint") -> Any:
    return lambda given: (
        "webhook",
        verb,
        given[field],
        *(("--yes",) if verb in ("disable", "delete") else ()),
    )


ACTS: Sequence[Act] = (
    Act("webhook pause", "Pause", _become("paused", "paused"), (_ENDPOINT,), _words("pause"), at_once=True),
    Act(
        "webhook enable",
        "Enable",
        _become("active", "active"),
        (_ENDPOINT,),
        _words("enable"),
        at_once=True,
    ),
    Act(
        "webhook disable",
        "Disable",
        _become("disabled", "disabled"),
        (_ENDPOINT,),
        _words("disable"),
        _preview_disable,
    ),
    Act(
        "webhook rotate",
        "New secret",
        _rotate,
        (_ENDPOINT, Field("overlap", "The old ones sign for", value="24h", hint="0 after a leak.")),
        lambda g: ("webhook", "rotate", g["endpoint"], "--overlap", g.get("overlap") or "24h"),
        _preview_rotate,
        "admin",
    ),
    Act(
        "webhook delete",
        "Delete",
        _delete,
        (_ENDPOINT,),
        _words("delete"),
        _preview_delete,
        "admin",
        deletes=True,
    ),
    Act("webhook ping", "Ping", _ping, (_ENDPOINT,), _words("ping")),
    Act(
        "webhook redeliver",
        "Redeliver",
        _redeliver,
        (Field("delivery"),),
        _words("redeliver", "delivery"),
    ),
)
