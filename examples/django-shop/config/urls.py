"""The pages of the shop."""

from django.contrib import admin
from django.urls import path

from orders.views import pay

urlpatterns = [path("admin/", admin.site.urls), path("orders/<int:number>/pay", pay)]
