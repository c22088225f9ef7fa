"""The admin: who may see, who may act, and what is said of it."""

import re
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from tests.django_app.stock.tasks import admit, move, receive

from holdfast.testing import Kit

pytestmark = pytest.mark.usefixtures("_urls")


@pytest.fixture
def _urls() -> Iterator[None]:
    """Other tests in this process have pages of their own."""
    with override_settings(ROOT_URLCONF="tests.django_app.urls", ALLOWED_HOSTS=["*"]):
        yield


@pytest.fixture
def office(stock: Kit) -> Iterator[Kit]:
    """With the tables of users, and their permissions."""
    connections["default"].cursor().execute("DROP TABLE stock_part")
    call_command("migrate", verbosity=0)
    yield stock
    connections.close_all()


def client_of(name: str, *permissions: str) -> Client:
    user = User.objects.create_user(name, password="x", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="holdfast", codename__in=permissions)
    )
    client = Client()
    client.force_login(user)
    return client


def choose(client: Client, what: str, action: str, *ids: object) -> str:
    form = {"action": action, "_selected_action": [str(i) for i in ids]}
    page = client.post(f"/admin/holdfast/{what}/", form, follow=True).content.decode()
    return page.partition('<ul class="messagelist">')[2].partition("</ul>")[0]


def test_lists_are_for_those_who_may_see_them_and_have_no_forms(office: Kit) -> None:
    waiting = receive.enqueue(name="bolt")
    dead = move.using(max_attempts=1).enqueue(name="nut", fail=True)
    receive.using(run_after=3600).enqueue(name="later")
    waiting.cancel()
    office.run_worker()
    nobody = client_of("nobody")
    assert nobody.get("/admin/holdfast/job/").status_code == 403
    viewer = client_of("viewer", "view_job", "view_deadletter", "view_worker")
    jobs = viewer.get("/admin/holdfast/job/").content.decode()
    assert str(waiting.id) in jobs
    assert 'name="action"' not in jobs  # no act for one who may only see
    assert "Add" not in jobs.split("content-main")[1]
    letters = viewer.get("/admin/holdfast/deadletter/").content.decode()
    assert str(dead.id) in letters
    assert "fell off" in letters
    assert viewer.get("/admin/holdfast/worker/").status_code == 200
    for what, key in (("job", waiting.id), ("deadletter", dead.id)):
        page = viewer.get(f"/admin/holdfast/{what}/{key}/change/").content.decode()
        assert 'name="_save"' not in page
        assert viewer.post(f"/admin/holdfast/{what}/{key}/delete/", {"post": "yes"}).status_code == 403
    choose(viewer, "deadletter", "redrive", dead.id)
    choose(viewer, "job", "retry", dead.id)
    assert office.job(dead.id)["status"] == "dead_letter"


def test_errors_are_masked_and_cannot_be_guessed(office: Kit) -> None:
    """As on the dashboard: by the names of the task, and by what looks like a secret."""
    dead = admit.enqueue(diagnosis="flu")
    office.run_worker()
    ann = client_of("ann", "view_job", "view_deadletter", "retry_job", "cancel_job")
    pages = [
        f"/admin/holdfast/{what}/{end}"
        for what in ("job", "deadletter")
        for end in ("", f"{dead.id}/change/")
    ]
    for address in pages:
        page = ann.get(address).content.decode()
        assert "cannot admit: diagnosis=" in page
        assert "flu" not in page.replace("influence", "")
        assert "hunter2" not in page
    for what in ("job", "deadletter"):
        for lookup in (
            "last_error__contains=flu",
            "last_error__startswith=ValueError",
            "hold_reason__contains=x",
        ):
            assert ann.get(f"/admin/holdfast/{what}/?{lookup}").status_code != 200


def test_a_list_asks_for_no_more_than_it_shows(office: Kit) -> None:
    """Not for the states that there are, which would read every job, nor in upper case, which no index has."""
    one, two = receive.enqueue(name="bolt"), move.using(run_after=60).enqueue(name="nut")
    ann = client_of("ann", "view_job", "view_deadletter")
    with CaptureQueriesContext(connections["default"]) as asked:
        for query, found in {
            "": [one, two],
            f"q={one.id}": [one],
            "q=move": [two],
            "q=Move": [],
            "status=scheduled": [two],
            "status=completed": [],
        }.items():
            page = ann.get(f"/admin/holdfast/job/?{query}").content.decode()
            assert [h for h in (one, two) if f"{h.id}/change" in page] == found
        assert ann.get(f"/admin/holdfast/deadletter/?q={two.id}").status_code == 200
        offered = ann.get("/admin/holdfast/job/").content.decode()
        assert "_facets" not in offered  # a count per state
        assert set(re.findall(r"column-(\w+) sortable|sortable column-(\w+)", offered)) == {("", "key")}
        assert f'<span class="nowrap">{one.id}</span>' in offered
    texts = [query["sql"] for query in asked if "holdfast" in query["sql"]]
    assert texts != []
    assert [text for text in texts if "DISTINCT" in text or "UPPER" in text] == []


def test_dead_is_taken_for_dead_letter_in_the_address(office: Kit) -> None:
    """As in every command and on the dashboard: the choice is marked, and the jobs are listed."""
    dead = move.using(max_attempts=1).enqueue(name="nut", fail=True)
    office.run_worker()
    waiting = receive.enqueue(name="bolt")
    ann = client_of("ann", "view_job")
    for word in ("dead", "dead_letter"):
        page = ann.get(f"/admin/holdfast/job/?status={word}").content.decode()
        assert [f"{job.id}/change" in page for job in (dead, waiting)] == [True, False], word
        assert re.findall(r'<li class="selected">\s*<a[^>]*>([^<]*)', page) == ["dead_letter"], word


def test_acts_are_those_of_an_operator_with_the_users_name_in_the_audit(office: Kit) -> None:
    dead = move.using(max_attempts=1).enqueue(name="nut", fail=True)
    office.run_worker()
    later = receive.using(run_after=3600).enqueue(name="later")
    ann = client_of("ann", "view_job", "cancel_job", "view_deadletter", "redrive_deadletter")
    assert "Put back to work: 1 of 1" in choose(ann, "deadletter", "redrive", dead.id)
    assert office.job(dead.id)["status"] == "pending"
    choose(ann, "job", "retry", later.id)
    assert office.job(later.id)["status"] == "scheduled"  # to retry is another permission
    assert "Cancelled or asked to stop: 1 of 1" in choose(ann, "job", "cancel", later.id)
    assert office.job(later.id)["status"] == "cancelled"
    assert "Nothing was cancelled" in choose(ann, "job", "cancel", later.id)
    audit = office.sql("SELECT actor, action FROM holdfast.audit ORDER BY id")
    assert [tuple(row.values()) for row in audit] == [("ann", "dead redrive"), ("ann", "jobs cancel")]
