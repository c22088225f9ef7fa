"""What is not for everybody stands in no heading, name or address either."""

import asyncio
import html
import re
from urllib.parse import quote

from tests.web.conftest import Shop
from tests.web.surfing import Surfer, fields, made_for

from holdfast import Holdfast
from holdfast.pages import ActResult, Offer
from holdfast.testing import Kit
from holdfast.web.acting import _packed

CARD = "4111111111111111"
JWT = f"eyJhbGciOiJIUzI1NiJ9.{'eyJzdWIiOiJtYXJhIn0' * 8}.c2lnbmF0dXJl"
SECRETS = (CARD, JWT[:60])


# What acts on a key has to name it, for whoever may act: buttons and the commands to copy.
ACTING = re.compile(r'<a class="btn[^>]*data-dialog.*?</a>|<span class="cmd">.*?</span>', re.DOTALL)


async def _no_secret(mara: Surfer, path: str) -> str:
    text = ACTING.sub("", await mara.page(path))
    for secret in SECRETS:
        assert secret not in text, (path, text[text.index(secret) - 80 :][:200])
    return text


def _headings(text: str) -> list[str]:
    found = re.findall(r"<h1[^>]*>(.*?)</h1>", text) + re.findall(r"<title>(.*?)</title>", text)
    return [html.unescape(one) for one in found]


async def test_a_name_that_looks_like_a_secret_is_masked_on_its_page_and_links_nowhere(
    mara: Surfer, kit: Kit
) -> None:
    """A key of a payload's value, or a tag of one, is chosen by the code that enqueues."""
    jobs = [
        kit.app.send("ship", {"number": n}, partition_key=key, queue="parcels", tags=[f"card {CARD}"])
        for n, key in enumerate((CARD, CARD, JWT))
    ]
    for key in (CARD, "order:1"):
        payload = {"order_id": 1, "card_token": "tok"}
        kit.app.send("charge", payload, partition_key=key, tags=[f"card {CARD}", key])
    await asyncio.to_thread(kit.run_worker)
    assert "••••" in await _no_secret(mara, f"/jobs/{jobs[0].id}")
    await _no_secret(mara, f"/jobs?peek={jobs[0].id}")
    for path in ("/jobs", "/keys", "/keys/parcels", "/dead", "/doctor", "/"):
        await _no_secret(mara, path)
    asked = await mara.page(f"/keys/parcels?key={quote(CARD)}")
    assert _headings(asked) == ["••••••••", "•••••••• · Holdfast"]
    (group,) = (await mara.get("/api/v1/dead")).json()["data"]["groups"]["groups"]
    await _no_secret(mara, f"/dead?group={group['id']}")


async def test_a_secret_in_an_error_of_a_group_is_masked_wherever_it_stands(
    mara: Surfer, kit: Kit, shop: Shop
) -> None:
    """One that is cut in half is not known for what it is: it is cut when it is masked."""
    for before in (100, 440, 480, 499):
        said = f"ConnectionError: {'x' * (before - 18)} {JWT} and so on"
        kit.sql("UPDATE holdfast.dead_letters SET last_error = %s WHERE id = %s", [said, shop.dead])
        await _no_secret(mara, "/dead")
        data = (await mara.get("/api/v1/dead")).text
        assert JWT[:60] not in data, before


async def test_json_that_somebody_typed_is_in_no_address(mara: Surfer, kit: Kit, shop: Shop) -> None:
    """Access logs and browsers keep addresses, and payloads hold what is nobody's business there."""
    patch = '{"card_token": "tok_new"}'
    refused = await mara.get(f"/acts/dead-patch?task=charge&patch={quote(patch)}")
    assert (refused.status_code, "not taken from an address" in refused.text) == (400, True)
    asked = await mara.page("/acts/dead-patch?task=charge&back=dead")
    assert 'method="post"' in asked[asked.index("confirm-form") - 120 :]
    shown = await mara.post("/acts/dead-patch", {**fields(asked), "patch": patch})
    assert (shown.status_code, "1 job would be patched" in shown.text) == (200, True)
    assert kit.job(shop.dead)["payload"]["card_token"] == "tok_4242"
    done = await mara.post("/acts/dead-patch", fields(shown.text))
    assert (done.status_code, done.headers["location"]) == (303, "/dead")
    assert kit.job(shop.dead)["payload"]["card_token"] == "tok_new"
    assert (
        await mara.post("/acts/dead-patch", {"task": "charge", "patch": patch, "look": "1"})
    ).status_code == 403


async def test_what_was_typed_is_there_after_a_refusal(mara: Surfer, kit: Kit, shop: Shop) -> None:
    typed = '{"order_id": 3, "cents": '
    form = fields(await mara.page(f"/acts/jobs-edit?id={shop.waiting}&back=jobs"))
    refused = await mara.post("/acts/jobs-edit", {**form, "arguments": typed, "priority": "7"})
    text = html.unescape(refused.text)
    assert (refused.status_code, typed in text, 'value="7"' in text) == (400, True, True)
    assert "arguments" in re.findall(r'<p class="trouble">(.*?)</p>', text, re.DOTALL)[0]
    again = fields(refused.text)
    done = await mara.post("/acts/jobs-edit", {**again, "arguments": '{"order_id": 4}'})
    assert done.status_code == 303, done.text[-1500:]
    assert (kit.job(shop.waiting)["payload"], kit.job(shop.waiting)["priority"]) == ({"order_id": 4}, 7)


def test_a_long_sentence_of_any_letters_fits_the_cookie(app: Holdfast) -> None:
    """A browser drops a cookie of more than 4 KiB, and with it what was done and its undo."""
    said = ActResult("受" * 600, undo=Offer("undo", {"entry": "17"}, "Undo"))
    assert len(_packed(made_for(app).site, said)) < 4000
