"""A Django project in one file: `python -m examples.snippets.django_shop runserver`."""

import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, models, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

from holdfast import Holdfast

DATABASE = os.environ["HOLDFAST_DATABASE_URL"]

jobs = Holdfast(DATABASE)
address = conninfo_to_dict(DATABASE)
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": address["dbname"],
            **{key.upper(): address[key] for key in ("user", "password", "host", "port") if key in address},
        }
    },
)
django.setup()


class Order(models.Model):
    class Meta:
        app_label = "shop"
        db_table = "orders"


@jobs.task
def send_receipt(order_id: int) -> str:
    return f"receipt for order {order_id}"


# snippet
def pay(request: HttpRequest, order_id: int) -> HttpResponse:
    with transaction.atomic():
        order = Order.objects.create(id=order_id)
        send_receipt.using(conn=connection).enqueue(order_id=order.pk)
    return HttpResponse("paid")


# end
urlpatterns = [path("orders/<int:order_id>/pay", pay)]

with connection.schema_editor() as editor:
    if Order._meta.db_table not in connection.introspection.table_names():
        editor.create_model(Order)

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
