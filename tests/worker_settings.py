"""What a worker needs, and no pages: it starts in three quarters of the time, and many start."""

from tests.settings import *  # noqa: F403 - the whole point

_PAGES = ("admin", "messages", "sessions", "staticfiles")
INSTALLED_APPS = [app for app in INSTALLED_APPS if app.rpartition(".")[2] not in _PAGES]  # noqa: F405
ROOT_URLCONF = None
MIDDLEWARE = []
TEMPLATES = []
