"""A dashboard on the test's database, and somebody who looks at it without a browser."""

import html
import re
from typing import Any

import httpx

from holdfast import Holdfast
from holdfast.pages import Role
from holdfast.web.application import Dashboard, dashboard
from holdfast.web.identity import Identity

TOKENS = re.compile(r'name="(csrf|seal|back)" value="([^"]*)"')


class Surfer:
    """One person with one browser: keeps cookies, follows forms as a page of ours sends them."""

    def __init__(self, made: Any, base: str = "http://testserver") -> None:
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=made, raise_app_exceptions=False), base_url=base
        )

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(path, headers=headers)

    async def page(self, path: str) -> str:
        answer = await self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[-1500:])
        return answer.text

    async def post(self, path: str, form: dict[str, str], **headers: str) -> httpx.Response:
        sent = {"origin": str(self.client.base_url).rstrip("/"), **headers}
        return await self.client.post(path, data=form, headers=sent)

    async def look(self, path: str, **typed: str) -> str:
        """What an act would do with what is typed into its form."""
        form = fields(await self.page(path))
        answer = await self.post(path.partition("?")[0], {**form, **typed})
        assert (form["look"], answer.status_code) == ("1", 200), answer.text[-1500:]
        return answer.text

    async def confirm(self, path: str, **more: str) -> httpx.Response:
        """Open the preview of an act, and send its form as it is."""
        text = await self.page(path)
        form = fields(text)
        return await self.post(path.partition("?")[0], {**form, **more})


def fields(text: str) -> dict[str, str]:
    """The fields of the form that confirms an act, as a browser sends them where nobody types."""
    form = text[text.index('class="confirm-form"') :]
    form = form[: form.index("</form>")]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    found += re.findall(r'<input class="input" name="([^"]+)" value="([^"]*)"', form)
    for name, options in re.findall(r'<select class="input" name="([^"]+)">(.*?)</select>', form):
        chosen = re.search(r"<option selected>([^<]*)", options) or re.search(r"<option>([^<]*)", options)
        found += [(name, chosen[1])] if chosen else []
    return {name: html.unescape(value) for name, value in found}


def made_for(app: Holdfast, role: Role = "admin", name: str = "mara", **options: Any) -> Dashboard:
    return dashboard(app, lambda _: Identity(name, role), **options)
