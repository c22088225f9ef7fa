"""Times in the zone of who looks, by a cookie of the browser; programs get UTC."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from tests.web.surfing import Surfer

from holdfast.testing import Kit
from holdfast.web import shown, zones


@pytest.fixture(autouse=True)
def _utc_again() -> Iterator[None]:
    yield
    in_zone("")


def in_zone(name: str) -> str:
    class Asked:
        cookies = {zones.COOKIE: name}

    zones.use_zone(Asked())  # type: ignore[arg-type]
    noon = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
    return f"{zones.wall(noon)}, {shown.exact_time(noon)}, {shown.clock(noon, noon)}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../../etc/passwd",
        "/etc/localtime",
        "Europe",
        "Mars/Phobos",
        "x" * 5000,
        "\0",
        "tzdata.zi",
        "%2E%2E%2Fetc%2Fpasswd",
        "%00",
        "%FF",
        "%",
    ],
)
def test_what_is_no_zone_is_utc(name: str) -> None:
    assert in_zone(name) == "12:00:00 UTC, 2026-07-01 12:00:00.000 UTC, 12:00:00"


def test_a_zone_is_said_beside_its_times() -> None:
    assert in_zone("Europe/Berlin") == "14:00:00 CEST, 2026-07-01 14:00:00.000 CEST, 14:00:00"
    assert in_zone("Asia%2FKolkata").startswith("17:30:00 IST")
    assert in_zone("Etc%2FGMT%2B5").startswith("07:00:00 -05")  # as encodeURIComponent() writes it


@pytest.mark.parametrize("zone", ["", "America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("at", [datetime(9999, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_what_waits_for_an_event_has_no_time_in_any_zone(zone: str, at: datetime) -> None:
    in_zone(zone)
    assert shown.clock(at) == "not by itself"
    assert shown.exact_time(at)[:3] == "999"


async def test_a_browser_is_shown_its_own_zone_and_a_program_is_not(mara: Surfer, kit: Kit) -> None:
    job = kit.app.task(name="nap")(lambda: None).enqueue()
    mara.client.cookies.set(zones.COOKIE, "Asia%2FKolkata")
    text = await mara.page(f"/jobs/{job.id}")
    assert re.search(r'data-live="clock">\d\d:\d\d:\d\d IST<', text)
    assert re.search(r'title="[0-9-]+ [0-9:.]+ IST"', text)
    assert "IST" in (await mara.get("/live?poll=1&topics=overview")).json()["clock"]
    assert "+05:30" not in (await mara.get(f"/api/v1/jobs/{job.id}")).text
    mara.client.cookies.delete(zones.COOKIE)
    assert re.search(r'data-live="clock">\d\d:\d\d:\d\d UTC<', await mara.page(f"/jobs/{job.id}"))
