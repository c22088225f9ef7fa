"""The engine's own pages, a file each. Those of shapes are in the shapes."""

from typing import TYPE_CHECKING

from holdfast.pages import Page
from holdfast.web.views import (
    audit,
    dead,
    doctor,
    jobs,
    keys,
    limits,
    one_job,
    operations,
    overview,
    queues,
    saved,
    settings,
    workers,
)

if TYPE_CHECKING:
    from holdfast.web.site import Site


def engine(site: "Site") -> list[Page]:
    return [
        overview.page(site),
        jobs.page(site),
        one_job.page(site),
        *queues.pages(site),
        dead.page(site),
        *keys.pages(site),
        workers.page(site),
        limits.page(site),
        doctor.page(site),
        *operations.pages(site),
        audit.page(site),
        saved.page(site),
        settings.page(site),
    ]
