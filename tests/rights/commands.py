# ruff: noqa: E501
"""Every command of the program, as an operator types it. A new command fails test_every_command_is_listed until it is here."""

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import typer
from tests.rights.life import PLACE, Life

from holdfast import Workflow
from holdfast.cli import app
from holdfast.operate.doctor.run import FIXES
from holdfast.store.runbook import QUESTIONS
from holdfast.store.workers import register

READS = (
    "status", "top --times 1", "explain {later}", "doctor", "audit", "operations list", "operations show {begun}", "stats", "jobs list", "jobs show {later}", "dead list", "dead show {dead}", "archive search",
    "archive show {done}", "group list", "group show {group}", "keys list ordered", "keys show ordered key1", "keys blocked", "keys hot", "keys held", "keys limits", "queue list",
    "queue show ordered", "task list", "schedule list", "schedule last tick", "schedule next tick", "workers", "workers list", "ring", "migrate status", "migrate plan",
    "events list", "events show 1", "events lag", "events tail --no-follow", "events retention", "events rebase", "subscriptions list",
    "received list", "received show legacy m1", "webhook list", "webhook show {hook}", "webhook deliveries {hook}", "webhook delivery {ping}", "workflow list", "workflow show {run}", "workflow timeline {run}", "workflow check --app tests.rights.commands:declared --workflow none", "subscriptions show mail_it", "subscriptions failures mail_it", "projection list", "contracts check --app tests.rights.commands:declared", "runbook", *(f"runbook {name}" for name in QUESTIONS),
)  # fmt: skip

# In this order: each finds something to do. What an operator may change.
WRITES = (
    "queue create more --key-concurrency 3", "queue pause more", "queue resume more", "queue set more --key-concurrency 4", "keys limit more key1 --concurrency 2",
    "queue set more --key-concurrency none --ordering key", "queue sync --app tests.rights.commands:declared", "task pause plain", "task resume plain", "undo {undoable}",
    "dead discard --task nothing --background --yes", "operations stop {begun}", "operations run {second}",
    "jobs edit {later} --priority 3", "jobs retry {later}", "jobs cancel {cancel}", "jobs discard {discard}", "jobs discard --state scheduled --yes",
    "keys release ordered --all --yes", "keys hold fair key1 --for 10m", "keys lift fair key1", "dead redrive --task dies --yes", "dead discard --task fails --yes", "jobs copy {dead}", """dead patch {{"n":7}} {dead}""", "dead discard {dead}",
    "schedule pause tick", "schedule resume tick", "schedule run tick", "schedule add mine --task plain --every 1h", "schedule remove mine",
    "schedule backfill tick --from 2026-05-01T00:00Z --to 2026-05-02T00:00Z --yes", "workers drain --all --yes", "enqueue plain n:=1",
    "events erase 1 --whole --yes", "events retention --days 8", "subscriptions pause mail_it", "subscriptions reset mail_it --to start --yes", "subscriptions skip mail_it",
    "subscriptions resume mail_it", "subscriptions replay mail_it --from start --again --yes", "subscriptions forget-failures mail_it --yes",
    "subscriptions retry to_bus",
    "subscriptions remove mail_it --yes",
    "contracts store --app tests.rights.commands:declared",
    "webhook create -t acme --url https://acme.example/", "webhook update {hook} --url https://acme.example/b", "webhook pause {hook}",
    "webhook enable {hook}", "webhook rotate {hook}",
    "webhook disable {hook} --yes", "webhook delete {hook} --yes",
    "workflow fork {failed_run} --from charge", "workflow signal {run} go 1", "workflow pause {run}", "workflow resume {run}", "workflow cancel {run}", "workflow terminate {run} --yes",
    "workflow retry {failed_run}", "workflow retry {parted_run} --accept --yes --app tests.rights.commands:declared", "workflow retry {unfit_run} --drop-signal --yes",
)  # fmt: skip

# What needs the schema's owner. Each says what it would mend, or that there is nothing.
FIX = tuple(f"doctor --fix {name} --yes" for name in FIXES)

# These ask no database as an operator: they print, run servers of their own, or are the worker and the migrator. Those of projections need
# the code of one and rights on its tables. Of webhooks: they need their queue, or a ring of keys.
ELSEWHERE = {
    "webhook redeliver", "webhook reseal", "webhook ping", "webhook redeliver-range",
    "projection rebuild", "projection cancel", "projection pause", "projection resume", "projection reset", "projection drop", "projection failures",
    "projection retry", "contracts asyncapi", "contracts docs", "contracts export", "relays check",
    "bench", "config show", "db dump", "db env", "db psql", "db reset", "db start", "db status", "db stop", "dev", "init", "lab", "migrate sql", "migrate up", "monitoring alerts",
    "monitoring dashboard", "monitoring keda", "roles sql", "web", "worker",
}  # fmt: skip

declared = Life().app
declared.queue("declared", concurrency=5)  # which the database lacks


@declared.workflow(name="checkout")
async def checkout(wf: Workflow) -> None: ...


def every_command() -> set[str]:
    """As the program has them."""

    def walk(name: str, command: Any) -> Iterator[str]:
        parts = getattr(command, "commands", None)
        if parts is None or command.invoke_without_command:
            yield name
        for word, part in (parts or {}).items():
            yield from walk(f"{name} {word}".strip(), part)

    return set(walk("", typer.main.get_command(app)))


def command_of(words: str, known: set[str]) -> str:
    """The command in what is typed: the longest that it begins with."""
    return max((name for name in known if f"{words} ".startswith(f"{name} ")), key=len, default=words)


def filled(words: str, made: Mapping[str, object]) -> list[str]:
    return words.format(**made).split()


# A relay whose first event waits, as its worker leaves it.
RELAY = """
INSERT INTO holdfast.subscriptions (name, kind, patterns, position, seq, status, created_at, moved_at)
VALUES ('to_bus', 'relay', '{*}', 1, 1, 'paused', holdfast.now(), holdfast.now());
INSERT INTO holdfast.event_failures (subscription, position, seq, shard, kind, event_id, type, at)
VALUES ('to_bus', 1, 1, 0, 'parked', holdfast.uuid7(), 'order.paid', holdfast.now());
"""


# An endpoint, and a delivery to it.
HOOK = """
SELECT holdfast.webhook_create('{"id": "00000000-0000-7000-8000-000000000001", "tenant": "acme", "url": "https://acme.example/", "events": ["*"],
                                 "ordered": false, "scheme": "v1", "concurrency": 10}',
                               '{"id": "00000000-0000-7000-8000-000000000002", "scheme": "v1", "sealed": "eA=="}');
INSERT INTO holdfast.webhook_deliveries (id, endpoint_id, tenant, event_id, event_type, url, cause, status, created_at)
VALUES (holdfast.uuid7(), '00000000-0000-7000-8000-000000000001', 'acme', holdfast.uuid7(), 'webhook.ping', 'https://acme.example/', 'ping', 'delivered', holdfast.now());
"""


# A run that is open, and one that has failed, as its worker leaves it.
RUNS = """
SELECT holdfast.create_queue('workflows') WHERE NOT EXISTS (SELECT FROM holdfast.queues WHERE name = 'workflows');
SELECT holdfast.workflow_start('checkout', '{}', 'open', 1, 'workflows'), holdfast.workflow_start('checkout', '{}', 'failed', 1, 'workflows');
WITH gone AS (DELETE FROM holdfast.work w USING holdfast.workflow_runs r WHERE w.queue = 'workflows' AND w.id = r.id AND r.key = 'failed' RETURNING w.*)
INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts, max_attempts, version, crashes, priority,
                                   queue, task, payload, last_error)
SELECT id, claim_token, seq, lease_generation, available_at, created_at, holdfast.now(), holdfast.now(), 1, 1, version, 0, 0, queue, task, payload, 'boom' FROM gone;
INSERT INTO holdfast.workflow_steps (run_id, generation, ordinal, began_at, ended_at, key, kind, outcome)
SELECT id, 1, 0, holdfast.now(), holdfast.now(), 'charge', 'step', 'done' FROM holdfast.workflow_runs WHERE key = 'failed';
SELECT holdfast.workflow_start('checkout', '{}', 'parted', 1, 'workflows');
UPDATE holdfast.work w SET status = 'held', hold_reason = 'diverged' FROM holdfast.workflow_runs r WHERE w.queue = 'workflows' AND w.id = r.id AND r.key = 'parted';
UPDATE holdfast.workflow_runs SET state = 'diverged' WHERE key = 'parted';
INSERT INTO holdfast.workflow_steps (run_id, generation, ordinal, began_at, ended_at, key, kind, outcome)
SELECT id, 1, 0, holdfast.now(), holdfast.now(), 'charge', 'step', 'done' FROM holdfast.workflow_runs WHERE key = 'parted';
SELECT holdfast.workflow_start('checkout', '{}', 'unfit', 1, 'workflows'), holdfast.workflow_signal('checkout', 'unfit', 'go', '"x"', 'click-1');
UPDATE holdfast.work w SET status = 'held', hold_reason = 'diverged: the payload of signal ''go'', number 1 that ''go'' took, does not fit the code: x' FROM holdfast.workflow_runs r
WHERE w.queue = 'workflows' AND w.id = r.id AND r.key = 'unfit';
UPDATE holdfast.workflow_runs SET state = 'diverged' WHERE key = 'unfit';
UPDATE holdfast.workflow_signals SET taken_by = 'go';
SELECT holdfast.workflow_end(ARRAY(SELECT id FROM holdfast.workflow_runs WHERE key = 'failed'), '{failed}', '{NULL}', '{NULL}');
"""


# Two operations that nobody has taken up.
BEGUN = """
INSERT INTO holdfast.operations (id, verb, selection, options, bounds, actor, surface, created_at, total, capped, audit)
SELECT id, 'jobs cancel', '{"task": "nothing", "states": ["pending"]}', '{}', '[null, null, null, null, null]', 'ann', 'cli', holdfast.now(), 0, false,
       holdfast.record_act('ann', 'jobs cancel', '{}', 0, 'cli', part_of => id)
FROM unnest('{00000000-0000-4000-8000-000000000001, 00000000-0000-4000-8000-000000000002}'::uuid[]) AS id;
"""


def something_of_each(life: Life, dsn: str, made: Mapping[str, object]) -> dict[str, object]:
    """What the commands above name: besides `made`, one that is dead, one that is done, a group, one to discard and a worker."""
    life.app.database.run(
        lambda: register(PLACE, queues=["inbox"], tasks=["plain"], concurrency=1, release="-")
    )
    discard = life.plain.using(run_after=7200).enqueue(9).id
    with psycopg.connect(dsn, options="-c search_path=pg_catalog") as conn:
        conn.execute("SELECT holdfast.receive('legacy', 'm1', sha256(''), 'plain', '{\"n\": 1}')")
        conn.execute(RELAY)
        conn.execute(HOOK)
        conn.execute(RUNS)
        conn.execute(BEGUN)
        named = {
            "begun": "SELECT id FROM holdfast.operations ORDER BY id",
            "undoable": """WITH paused AS (UPDATE holdfast.queues SET paused_at = holdfast.now(), paused_by = 'ann'
                WHERE name = 'fair' RETURNING name)
                SELECT holdfast.record_act('ann', 'queue pause', '{"queue": "fair"}', 1) FROM paused""",
            "second": "SELECT id FROM holdfast.operations ORDER BY id DESC",
            "hook": "SELECT id FROM holdfast.webhook_endpoints",
            "ping": "SELECT id FROM holdfast.webhook_deliveries",
            "run": "SELECT id FROM holdfast.workflow_runs WHERE key = 'open'",
            "parted_run": "SELECT id FROM holdfast.workflow_runs WHERE key = 'parted'",
            "unfit_run": "SELECT id FROM holdfast.workflow_runs WHERE key = 'unfit'",
            "failed_run": "SELECT id FROM holdfast.workflow_runs WHERE key = 'failed'",
            "dead": "SELECT id FROM holdfast.dead_letters WHERE task = 'breaks' LIMIT 1",
            "done": "SELECT id FROM holdfast.archive WHERE task = 'plain' LIMIT 1",
            "group": "SELECT id FROM holdfast.groups LIMIT 1",
        }
        found = {name: conn.execute(query.encode()).fetchone() for name, query in named.items()}
    assert all(found.values()), found
    return {**made, "discard": discard, **{name: row[0] for name, row in found.items() if row}}
