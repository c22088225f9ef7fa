"""`holdfast dead`, as a person and as a program use it."""

import re
from uuid import UUID

import pytest
from tests.surface.running import Cli

from holdfast import Holdfast
from holdfast.testing import Kit

WHICH = "say which dead letters: their ids, or filters such as --group, --task, --queue or --error, or --all"


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(dsn, monkeypatch)


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Kit:
    @app.task(max_attempts=1)
    def bad(n: int) -> None:
        if n < 10:
            raise ValueError(f"order {n} is\nwrong")
        raise KeyError(n)

    return kit


def bury(kit: Kit, *numbers: int) -> list[str]:
    ids = [str(kit.app.send("bad", {"n": n}).id) for n in numbers]
    kit.run_worker()
    return ids


def state(kit: Kit, job_id: str) -> str:
    return str(kit.job(UUID(job_id))["status"])


def test_dead_list(shop: Kit, cli: Cli) -> None:
    assert cli.text("dead", "list") == "No dead letters.\n"
    ids = bury(shop, 1, 2, 3, 10)
    lines = cli.text("dead", "list").splitlines()
    heads = ["group", "task", "queues", "dead", "first died", "last died", "last error"]
    assert re.split(r"\s{2,}", lines[0]) == heads
    assert [re.split(r"\s{2,}", line)[1:4] for line in lines[1:]] == [
        ["bad", "inbox", "3"],
        ["bad", "inbox", "1"],
    ]
    assert re.search(r"ValueError: order [123] is wrong$", lines[1])
    found = cli.json("dead", "list")
    assert list(found) == ["groups", "looked_at", "capped"]
    assert (found["looked_at"], found["capped"]) == (4, False)
    group = found["groups"][0]
    assert list(group) == [
        "id",
        "task",
        "queues",
        "count",
        "first_died_at",
        "last_died_at",
        "error",
        "job_id",
        "by_hour",
    ]
    assert group["job_id"] in ids[:3]
    assert [g["count"] for g in cli.json("dead", "list", "-e", "keyerror")["groups"]] == [1]

    each = cli.text("dead", "list", "--each").splitlines()
    assert each[0].split() == ["id", "group", "queue", "task", "attempts", "died", "error"]
    assert {line.split()[0] for line in each[1:]} == set(ids)
    of_group = cli.json("dead", "list", "--group", group["id"])["dead_letters"]
    assert {d["id"] for d in of_group} == set(ids[:3])
    page = cli.json("dead", "list", "--each", "-n", "1")
    rest = cli.json("dead", "list", "--after", page["next"])["dead_letters"]
    assert {d["id"] for d in [*page["dead_letters"], *rest]} == set(ids)
    assert cli.text("dead", "list", "--newer-than", "1h", "--older-than", "30m") == "No dead letters.\n"
    assert "is not a place in the list" in cli.refused("dead", "list", "--after", "x")
    assert cli.refused("dead", "list", "--group", "x").startswith(
        "'x' is no group. Use one that holdfast dead"
    )


def test_dead_show(shop: Kit, cli: Cli) -> None:
    (dead,) = bury(shop, 1)
    text = cli.text("dead", "show", dead)
    assert "place       the dead letters" in text
    assert "ValueError: order 1 is\n  wrong\n" in text
    cli.text("dead", "redrive", dead)
    assert cli.refused("dead", "show", dead) == (
        f"job {dead} is no dead letter: it is pending, in queue inbox. See: holdfast jobs show {dead}"
    )


def test_redrive(shop: Kit, cli: Cli) -> None:
    ids = bury(shop, 1, 2, 3, 10)
    assert cli.text("dead", "redrive", ids[0]) == "Redrive: 1 redriven.\n"
    assert state(shop, ids[0]) == "pending"
    assert f"job {ids[0]} is no dead letter: it is pending" in cli.refused("dead", "redrive", ids[0], ids[1])
    shop.run_worker()
    assert shop.job(UUID(ids[0]))["lease_generation"] == 2

    for words in ([], ["--all", "--task", "bad"], [ids[0], "--all"]):
        assert cli.refused("dead", "redrive", *words) == WHICH
        assert cli.refused("dead", "discard", *words) == WHICH
    assert cli.refused("dead", "redrive", "--task", "bad") == (
        "this would redrive 4 jobs (4 dead_letter). Say so: --yes (or look first: --dry-run)"
    )
    assert cli.text("dead", "redrive", "--task", "other", "--yes") == "Nothing to redrive.\n"
    assert cli.text("dead", "redrive", "--task", "other") == "Nothing to redrive.\n"
    dry = cli.text("dead", "redrive", "--all", "--dry-run")
    assert dry.splitlines()[-1] == (
        "Dry run: dead redrive would act on 4 jobs (4 dead_letter). Nothing was changed."
    )
    assert {state(shop, i) for i in ids} == {"dead_letter"}

    group = cli.json("dead", "list", "-e", "KeyError")["groups"][0]["id"]
    assert cli.text("dead", "redrive", "--group", group, "-y") == "Redrive: 1 redriven.\n"
    assert state(shop, ids[3]) == "pending"
    shop.sql("UPDATE holdfast.dead_letters SET queue = 'lost' WHERE id = %s", [ids[2]])
    assert cli.text("dead", "redrive", "--all", "--yes").splitlines() == [
        "Redrive: 2 redriven.",
        "Left: 1, belongs to queue lost, which does not exist. Create it: holdfast queue create lost",
    ]
    cli.text("queue", "create", "lost")
    done = cli.json("dead", "redrive", "--all", "--yes")
    assert (done["action"], done["count"], done["results"], done["left"]) == (
        "dead redrive",
        1,
        {"redriven": 1},
        {},
    )
    acts = [(e["action"], e["count"]) for e in cli.json("audit")["audit"] if e["action"] == "dead redrive"]
    assert acts == [("dead redrive", 1), ("dead redrive", 2), ("dead redrive", 1), ("dead redrive", 1)]


def test_redrive_at_a_rate(shop: Kit, cli: Cli) -> None:
    ids = bury(shop, 1, 2, 3)
    assert cli.text("dead", "redrive", "--all", "--rate", "6/m", "--yes") == "Redrive: 3 redriven.\n"
    assert sorted(state(shop, i) for i in ids) == ["pending", "scheduled", "scheduled"]
    gaps = "SELECT extract(epoch FROM available_at - min(available_at) OVER ())::int AS s FROM holdfast.work ORDER BY 1"
    assert [r["s"] for r in shop.sql(gaps)] == [0, 10, 20]
    selection = cli.json("audit")["audit"][0]["selection"]
    assert UUID(selection.pop("act"))  # by which it can be undone
    assert selection == {"all": True, "per_second": 0.1}
    for rate in ("100", "0/s", "5/y", "x/s", "-1/s"):
        said = f"--rate '{rate}' is no rate. Write 100/s, 5/m or 1000/h"
        assert cli.refused("dead", "redrive", "--all", "--rate", rate) == said


def test_keys_and_tags(shop: Kit, cli: Cli) -> None:
    plain, keyed, tagged = bury(shop, 1, 2, 3)
    shop.sql("UPDATE holdfast.dead_letters SET partition_key = 'order:1' WHERE id = %s", [keyed])
    shop.sql("UPDATE holdfast.dead_letters SET tags = '{vip}' WHERE id = %s", [tagged])
    (line,) = cli.json("dead", "list", "--each", "--key", "order:1")["dead_letters"]
    assert line["id"] == keyed
    assert cli.text("dead", "redrive", "--key", "order:1", "--yes") == "Redrive: 1 redriven.\n"
    assert cli.text("dead", "discard", "--tag", "vip", "--yes") == "Discard: 1 discarded.\n"
    assert [state(shop, i) for i in (plain, keyed)] == ["dead_letter", "pending"]
    assert [job["id"] for job in cli.json("dead", "list", "--each")["dead_letters"]] == [plain]


def test_discard(shop: Kit, cli: Cli) -> None:
    ids = bury(shop, 1, 2, 10)
    (live,) = [str(shop.app.send("bad", {"n": 5}).id)]
    assert f"job {live} is no dead letter: it is pending" in cli.refused("dead", "discard", live, ids[0])
    assert cli.text("dead", "discard", ids[0]) == "Discard: 1 discarded.\n"
    assert cli.refused("dead", "discard", "-e", "order") == (
        "this would discard 1 job (1 dead_letter). Say so: --yes (or look first: --dry-run)"
    )
    assert cli.text("dead", "discard", "-e", "order", "-y") == "Discard: 1 discarded.\n"
    assert cli.json("dead", "list", "--each")["dead_letters"][0]["id"] == ids[2]
    assert [job["id"] for job in cli.json("jobs", "list")["jobs"]] == [live, ids[2]]


def test_patch(shop: Kit, cli: Cli) -> None:
    (job_id,) = bury(shop, 1)
    ran = cli("dead", "patch", '{"n": 2}', job_id)
    assert "1 patched" in ran.out
    assert "the arguments were not checked" in ran.err
    assert shop.job(UUID(job_id))["payload"] == {"n": 2}
    seen = cli("dead", "patch", '{"n": null}', "--all", "--dry-run")
    assert "Dry run: dead patch would act on 1 job" in seen.out
    assert cli.refused("dead", "patch", "[1]", "--all").startswith("PATCH")
    assert cli.refused("dead", "patch", "{}", "--all").startswith("say what to change")
    assert [entry["action"] for entry in cli.json("audit")["audit"]] == ["dead patch"]
