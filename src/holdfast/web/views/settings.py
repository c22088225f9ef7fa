"""Which settings hold, where they come from, and what this page does in this browser."""

from typing import TYPE_CHECKING

from holdfast.operate.configuration import AppChoice, describe_configuration
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Page, PageRequest, View
from holdfast.web.views.drawn import Drawn

if TYPE_CHECKING:
    from holdfast.web.site import Site


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        app = AppChoice("of this dashboard", "", site.app.database.url, site.app._given_settings)
        found = describe_configuration(site.release, None, app)
        seen = yield from Operator.overview.procedure(cap=1)  # for the versions: it counts next to nothing
        context = {"configuration": found, "overview": seen, "read_only": site.read_only}
        data = {"configuration": found, "server": seen.server_version, "schema": seen.schema_version}
        return Drawn((), data, ("config", "show"), template="settings.html", context=context)

    return Page("settings", "Settings", load, "System", "settings")
