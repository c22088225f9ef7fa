"""Orders, and what was sent for them."""

from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)
    email = models.CharField(max_length=100)


class Receipt(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    sent_to = models.CharField(max_length=100)
