"""An app like any other."""

from django.apps import AppConfig


class StockConfig(AppConfig):
    name = "tests.django_app.stock"
    label = "stock"
