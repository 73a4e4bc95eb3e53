"""Settings of the workers and producers under test."""

from datetime import timedelta

from jobqueue.backoff import Exponential
from tests.settings import *  # noqa: F403 - the tests' settings but for what follows

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]  # noqa: F405
JOBQUEUE = {"BACKOFF": Exponential(base=timedelta(seconds=0.5), cap=timedelta(seconds=5))}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    # A line for each job that succeeds would be all that there is to see after an hour.
    "loggers": {"jobqueue": {"handlers": ["stderr"], "level": "WARNING"}},
}
