"""An app like any other."""

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    name = "orders"
