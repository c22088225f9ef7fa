"""Orders can be corrected in the admin."""

from django.contrib import admin

from .models import Order

admin.site.register(Order)
