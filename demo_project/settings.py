"""Settings of the demo project; each works without any environment variable."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import django
import environ

from demo_project.database import database_config
from jobqueue.backoff import Exponential

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent
#: Everything that the demo writes: mail, documents, logs, evidence.
DEMO_DIR = Path(env.str("DEMO_DIR", default=str(BASE_DIR / ".demo"))).resolve()

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="django-insecure-for-the-demo-on-this-machine-only")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "jobqueue",
    "demo_project.orders",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
            ],
        },
    },
]
ROOT_URLCONF = "demo_project.urls"
WSGI_APPLICATION = "demo_project.wsgi.application"

DATABASES = {"default": database_config()}
#: Another database on the same server, for the bench and the tests of the demo.
if env.str("DATABASE_NAME", default=""):
    DATABASES["default"]["NAME"] = env.str("DATABASE_NAME")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
MEDIA_URL = "media/"
MEDIA_ROOT = DEMO_DIR / "media"

#: Receipts are files here rather than mail.
OUTBOX = DEMO_DIR / "outbox"
DEFAULT_FROM_EMAIL = "shop@demo.invalid"
if django.VERSION >= (6, 1):
    MAILERS = {
        "default": {
            "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
            "OPTIONS": {"file_path": OUTBOX},
        },
    }
else:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = OUTBOX

JOBQUEUE = {
    # Retries within seconds, so that the demo ends within a minute.
    "BACKOFF": Exponential(base=timedelta(seconds=0.4), factor=2.0, cap=timedelta(seconds=3)),
    # A METRICS_TOKEN of your own would let a Prometheus elsewhere read /metrics/jobqueue. Without
    # one only this machine may: curl http://127.0.0.1:8000/metrics/jobqueue
}

#: Where shipped orders are announced; by default this project's own server answers.
WEBHOOK_URL = env.str("WEBHOOK_URL", default="http://127.0.0.1:8000/webhook/")
WEBHOOK_TIMEOUT = env.float("WEBHOOK_TIMEOUT", default=2.0)
