"""The Django project of the tests: one settings module for all of them, because Django takes one per process."""

import os

from django import VERSION as DJANGO
from psycopg.conninfo import conninfo_to_dict

SECRET_KEY = "tests"
USE_TZ = True
TIME_ZONE = "UTC"  # Django sets it for the whole process
LOGGING_CONFIG = None
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.django_app.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "holdfast.contrib.django",
    *(["django_tasks"] if DJANGO < (6,) else []),
    "tests.django_app.stock",
]
_AT = conninfo_to_dict(os.environ.get("STOCK_DATABASE", "host=unused.invalid dbname=none"))
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _AT.get("dbname"),
        "CONN_MAX_AGE": None if os.environ.get("STOCK_MAX_AGE") == "none" else 0,
        **{key.upper(): _AT[key] for key in ("user", "password", "host", "port") if _AT.get(key)},
    },
    "reports": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
TASKS = {
    "default": {
        "BACKEND": "holdfast.contrib.django.backend.HoldfastBackend",
        "QUEUES": ["default", "mail"],
    },
    "stubborn": {
        "BACKEND": "holdfast.contrib.django.backend.HoldfastBackend",
        "OPTIONS": {"max_attempts": 3},
    },
}
HOLDFAST = {"CONCURRENCY": 4, "POLL": "50ms", "LIFESPAN": "tests.django_app.stock.life.lifespan"}
