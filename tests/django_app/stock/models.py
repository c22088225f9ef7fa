"""What the handlers write."""

from django.db import models


class Part(models.Model):
    name = models.CharField(max_length=50)
    backend = models.IntegerField(null=True)  # the server's process that wrote it

    class Meta:
        app_label = "stock"
