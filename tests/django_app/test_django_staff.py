"""The dashboard for Django's staff: their sessions, their permissions."""

import asyncio
import re
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import Permission, User
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from holdfast.contrib.django import DjangoStaff
from holdfast.errors import ConfigurationError
from holdfast.testing import Kit
from holdfast.web import BearerTokens, Identity, first_of, hashed, holdfast_web

TOKEN = "a-token-of-more-than-twenty-letters"


class Site:
    """Django and the dashboard in one ASGI app, as docs/web.md says."""

    def __init__(self, app: Any, run: Any) -> None:
        self.app = app
        self.run = run

    def browser(self, **cookies: str) -> "Browser":
        return Browser(self, cookies)


class Browser:
    def __init__(self, site: Site, cookies: dict[str, str]) -> None:
        self._run = site.run
        transport = httpx.ASGITransport(app=site.app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://testserver", cookies=cookies)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self._ran(self._client.get(path, headers=headers))

    def post(self, path: str, form: dict[str, str]) -> httpx.Response:
        return self._ran(self._client.post(path, data=form))

    def _ran(self, asked: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
        answer: httpx.Response = self._run(asked)
        return answer


@pytest.fixture
def site(stock: Kit) -> Iterator[Site]:
    connections["default"].cursor().execute("DROP TABLE stock_part")
    call_command("migrate", verbosity=0)
    programs = BearerTokens({hashed(TOKEN): Identity("ci")})
    made = holdfast_web(stock.app, authorize=first_of(DjangoStaff(login_url="admin:login"), programs))
    around: Any = get_asgi_application()
    with (
        asyncio.Runner() as runner,
        override_settings(ROOT_URLCONF="tests.django_app.urls", ALLOWED_HOSTS=["*"]),
    ):
        yield Site(Starlette(routes=[Mount("/ops", made), Mount("/", around)]), runner.run)
        runner.run(made.close())
    connections.close_all()


def test_the_asgi_file_of_the_page_serves_both(site: Site) -> None:
    """docs/web.md shows it."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "web.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- skip: a file of a Django project -->\n```python\n(.*?)```", text, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(block, "web.md", "exec"), scope)
    theirs = Site(scope["application"], site.run)
    try:
        assert role_in(browser_of(theirs, "mara", "administer")) == "admin"
        assert theirs.browser().get("/admin/login/").status_code == 200
    finally:
        site.run(scope["dashboard"].close())


def browser_of(site: Site, name: str, *permissions: str, **more: Any) -> Browser:
    user = User.objects.create_user(name, password="x", **{"is_staff": True, **more})
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="holdfast", codename__in=permissions)
    )
    browser = site.browser()
    page = browser.get("/ops/")
    assert page.status_code == 401
    address = re.search(r'href="([^"]*)">Sign in<', page.text)
    assert address is not None
    form = browser.get(address[1])  # Django's own
    mark = re.search(r'name="csrfmiddlewaretoken" value="([^"]*)"', form.text)
    assert mark is not None
    given = {"username": name, "password": "x", "next": "/ops/", "csrfmiddlewaretoken": mark[1]}
    browser.post(address[1], given)
    return browser


def role_in(browser: Browser) -> str | None:
    found = re.search(r"<dt>Role</dt><dd>(\w+)</dd>", browser.get("/ops/settings").text)
    return found[1] if found else None


def test_staff_come_in_by_djangos_session_with_the_role_of_their_permissions(site: Site) -> None:
    mara = browser_of(site, "mara", "administer")
    assert role_in(mara) == "admin"
    assert role_in(browser_of(site, "olga", "operate")) == "operator"
    assert role_in(browser_of(site, "root", is_superuser=True)) == "admin"
    vera = browser_of(site, "vera", "view_job", "retry_job")
    assert role_in(vera) == "viewer"
    User.objects.filter(username="vera").update(is_staff=False)
    assert role_in(vera) is None  # though she is signed in, as customers of a shop are
    assert role_in(browser_of(site, "customer", is_staff=False)) is None
    program = site.browser().get("/ops/api/v1/openapi.json", authorization=f"Bearer {TOKEN}")
    assert program.status_code == 200
    User.objects.filter(username="mara").update(is_active=False)
    assert role_in(mara) is None  # at once, not when the session ends
    User.objects.filter(username="mara").update(is_active=True)
    assert role_in(mara) == "admin"
    user = User.objects.get(username="mara")
    user.set_password("another")  # which ends the sessions of before
    user.save()
    assert role_in(mara) is None
    assert site.browser(sessionid="0" * 32).get("/ops/").status_code == 401


async def test_what_it_needs_is_said() -> None:
    with pytest.raises(ConfigurationError, match="takes a permission such as"):
        DjangoStaff(operator="operate")
    request = Request({"type": "http", "headers": [(b"cookie", b"sessionid=x")]})
    without = override_settings(INSTALLED_APPS=["holdfast.contrib.django", "django.contrib.contenttypes"])
    with without, pytest.raises(ConfigurationError, match="in INSTALLED_APPS"):
        await DjangoStaff()(request)
