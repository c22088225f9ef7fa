"""Paying an order."""

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse

from .models import Order
from .tasks import send_receipt


def pay(request: HttpRequest, number: int) -> HttpResponse:
    """The order and its job commit together, or neither is there."""
    with transaction.atomic():
        Order.objects.create(number=number, email=request.GET["email"])
        handle = send_receipt.using(conn=connection).enqueue(number=number)
    return HttpResponse(str(handle.id))
