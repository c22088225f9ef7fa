"""Whom Django has signed in, for the dashboard: `holdfast_web(app, authorize=DjangoStaff())`."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest
from django.shortcuts import resolve_url

from ...errors import ConfigurationError
from ...model.text import printable, storable

if TYPE_CHECKING:
    from starlette.requests import Request

    from holdfast.web import Identity


class DjangoStaff:
    """Staff may view. Users with the permission `operator` act, and those with `admin` do everything; superusers have both.

    The session is Django's own, by its cookie: signing out there ends access here too. `login_url` is the sign-in
    page; None: settings.LOGIN_URL. It takes a name of a URL too, such as "admin:login"."""

    def __init__(
        self,
        *,
        operator: str = "holdfast.operate",
        admin: str = "holdfast.administer",
        login_url: str | None = None,
    ) -> None:
        for name, permission in (("operator", operator), ("admin", admin)):
            if permission.count(".") != 1:
                raise ConfigurationError(
                    f"DjangoStaff({name}=...) takes a permission such as holdfast.operate, not {permission!r}"
                )
        self._operator, self._admin, self._login_url = operator, admin, login_url

    async def __call__(self, request: "Request") -> "Identity | None":
        return await sync_to_async(self._find)(request.cookies)

    def sign_in(self, request: "Request") -> str:
        """Where one signs in, and comes back from."""
        query = urlencode({"next": request.url.path})
        return f"{resolve_url(self._login_url or settings.LOGIN_URL)}?{query}"

    def _find(self, cookies: Mapping[str, str]) -> "Identity | None":
        if not (apps.is_installed("django.contrib.sessions") and apps.is_installed("django.contrib.auth")):
            raise ConfigurationError(
                "DjangoStaff needs django.contrib.auth and django.contrib.sessions in INSTALLED_APPS"
            )
        key = cookies.get(settings.SESSION_COOKIE_NAME)
        if not key:
            return None
        close_old_connections()  # no request of Django's does it here
        try:
            request = HttpRequest()
            session: Any = importlib.import_module(settings.SESSION_ENGINE).SessionStore(key)
            session.cycle_key = lambda: None  # nobody here could send the cookie of a new one
            request.session = session
            user: Any = get_user(request)
            if not (user.is_authenticated and user.is_active and user.is_staff):
                return None
            role = "viewer"
            if user.has_perm(self._operator):
                role = "operator"
            if user.has_perm(self._admin):
                role = "admin"
            found: Identity = importlib.import_module("holdfast.web").Identity(
                storable(printable(user.get_username()), 200), role
            )
            return found
        finally:
            close_old_connections()
