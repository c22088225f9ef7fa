"""What is done after an order is paid. Every app's tasks.py is found by itself."""

from holdfast import DeadLetter, Transaction
from holdfast.contrib.django import app

from .models import Order, Receipt


@app.task
def send_receipt(tx: Transaction, number: int) -> str:
    """The receipt and the job's completion are one transaction: it is written once, however often a worker dies."""
    order = Order.objects.get(number=number)
    if "@" not in order.email:
        raise DeadLetter(f"order {number} has no address to write to: {order.email!r}")
    Receipt.objects.create(order=order, sent_to=order.email)
    return f"sent to {order.email}"
