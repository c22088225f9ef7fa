"""Which settings hold, where they come from, and what this page does in this browser."""

from typing import TYPE_CHECKING

from holdfast.operate.configuration import AppChoice, describe_configuration
from holdfast.operate.procedure import Procedure
from holdfast.pages import Asked, Page, View
from holdfast.web.views.drawn import Drawn, later
from holdfast.web.views.overview import OLD, numbers_of

if TYPE_CHECKING:
    from holdfast.web.site import Site


def page(site: "Site") -> Page:
    def load(asked: Asked) -> Procedure[View]:
        app = AppChoice("of this dashboard", "", site.app.database.url, site.app._given_settings)
        found = describe_configuration(site.release, None, app)
        # What everybody shares: no count of its own.
        numbers = yield from later(lambda: numbers_of(site, OLD))
        seen = numbers.found
        context = {"configuration": found, "overview": seen, "read_only": site.read_only}
        data = {"configuration": found, "server": seen.server_version, "schema": seen.schema_version}
        return Drawn((), data, ("config", "show"), template="settings.html", context=context)

    return Page("settings", "Settings", load, "System", "settings")
