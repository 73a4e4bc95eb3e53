"""The statements, one module for each kind of database; :func:`get` finds the one for an alias."""

from __future__ import annotations

from functools import cache

from django.db import connections
from django.utils.module_loading import import_string

from jobqueue.stores.base import Store

_STORES = {
    "postgresql": "jobqueue.stores.postgresql.PostgreSQLStore",
    "sqlite": "jobqueue.stores.sqlite.SQLiteStore",
}


def get(using: str) -> Store:
    """Return the store for a database alias; stores keep no state but the alias."""
    return _store(connections[using].vendor, using)


@cache
def _store(vendor: str, using: str) -> Store:
    path = _STORES.get(vendor, "jobqueue.stores.generic.GenericStore")
    store: Store = import_string(path)(using)
    return store
