"""The demo's settings, with the tests' own app and without anything that is only for the demo."""

from demo_project.settings import *  # noqa: F403 - the whole point

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "tests"]  # noqa: F405
# The tests are about jobqueue's defaults; a task that needs other values says so itself.
JOBQUEUE = {}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
