"""Problems of webhook endpoints, and of their secrets."""

from collections.abc import Iterator, Sequence

from ...model.sealing import VARIABLE, key_ring
from ...operate.advice import Advice, advise
from ...operate.doctor.finding import Check, Finding, Patient
from ...operate.wording import cut, listed, several, span
from ...store.queues import queue_rules
from .checking import CONCURRENCY
from .store import MOST_TROUBLED, QUEUE, FailingEndpoint, sealing_keys, troubled_endpoints

FAILING_FOR = 3600.0  # seconds of nothing but failures, above which it is reported
_SHOWN = 20  # commands that are printed
BY_HAND = "by hand"


def check_endpoints(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(troubled_endpoints(FAILING_FOR))
    if failing := [e for e in found if e.status == "active"]:
        what = f"{_many(failing)} that has done nothing but fail for an hour or more"
        fix = _each("show", failing)
        details = [
            f"{_who(e)}: fails for {span(e.seconds)}, {cut(e.why or 'for no known reason')}" for e in failing
        ]
        lasts = max(e.seconds for e in failing)
        drops = _each("disable", failing)
        yield Finding("failing_endpoint", "warning", what, fix, listed(details), drops, lasts=lasts)
    disabled = [e for e in found if e.status == "disabled" and e.why != BY_HAND]
    if disabled:
        what = f"{_many(disabled)} disabled because of what came back: events of the tenant make no delivery to it"
        details = [f"{_who(e)}: {_REASONS.get(e.why or '', e.why)}, {span(e.seconds)} ago" for e in disabled]
        fix = _each("enable", disabled)
        lasts = max(e.seconds for e in disabled)
        drops = _each("delete", disabled)
        yield Finding("disabled_endpoint", "warning", what, fix, listed(details), drops, lasts=lasts)
    stopped = [e for e in found if e not in failing and e not in disabled and e.seconds >= p.limits.paused]
    if stopped:
        what = f"{_many(stopped)} paused or disabled by hand for more than {span(p.limits.paused)}"
        details = [f"{_who(e)}: {e.status} {span(e.seconds)} ago" for e in stopped]
        yield Finding("stopped_endpoint", "info", what, _each("enable", stopped), listed(details))
    rules = p.probe.look(queue_rules([QUEUE])).get(QUEUE)
    if rules is not None and rules.key_concurrency is None:
        what = f"queue {QUEUE} has no limit for each key: the concurrency of endpoints does not count"
        fix = [advise("set_queue", queue=QUEUE, rule="key_concurrency", value=CONCURRENCY)]
        yield Finding("unlimited_endpoints", "warning", what, fix)


_REASONS = {
    "gone": "it replied 410",
    "failing": "it did nothing but fail for days",
    "forbidden_address": "its name led three times to an address that may not be called",
}


def check_secrets(p: Patient) -> Iterator[Finding]:
    keys = p.probe.look(sealing_keys())
    ring = key_ring()
    reseal = advise("webhook", verb="reseal", endpoint=None)
    if bare := keys.get(None, 0):
        what = f"{several(bare, 'secret')} of endpoints stored bare: anybody who reads a dump can sign as you"
        if ring.sealing is None:
            yield Finding(
                "bare_secrets", "info", f"{what}. {VARIABLE} is not set here", [advise("secret_keys"), reseal]
            )
        else:
            yield Finding("bare_secrets", "warning", f"{what}, though {VARIABLE} is set", [reseal])
    strange = {key: n for key, n in keys.items() if key is not None and key not in ring.ids}
    if strange and ring.sealing is not None:
        what = f"{several(sum(strange.values()), 'secret')} that no key of {VARIABLE} opens: nothing can be signed by it"
        details = [f"{several(n, 'secret')} sealed by key {key!r}" for key, n in strange.items()]
        yield Finding("unreadable_secrets", "error", what, [advise("old_secret_keys")], listed(details))


def _many(found: Sequence[FailingEndpoint]) -> str:
    more = "at least " if len(found) >= MOST_TROUBLED else ""
    return f"{more}{several(len(found), 'endpoint')}"


def _who(e: FailingEndpoint) -> str:
    return f"{e.id} of {cut(e.tenant)}"


def _each(verb: str, found: Sequence[FailingEndpoint]) -> list[Advice]:
    return [advise("webhook", verb=verb, endpoint=str(e.id)) for e in found[:_SHOWN]]


CHECKS = (
    Check(
        "webhooks",
        "endpoints take what is sent to them, or somebody turned them off not long ago",
        ("failing_endpoint", "disabled_endpoint", "stopped_endpoint", "unlimited_endpoints"),
        check_endpoints,
    ),
    Check(
        "secrets",
        "secrets of endpoints are sealed, by keys that are at hand",
        ("bare_secrets", "unreadable_secrets"),
        check_secrets,
    ),
)
