"""Empties the database after a test: only the tables that have rows."""

from __future__ import annotations

from typing import Any

from django.core.management.color import no_style
from django.core.management.commands import flush
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

#: What ``migrate`` has put there.
KEPT = {"django_content_type", "auth_permission"}


class Command(flush.Command):
    """Django's own empties all tables and then makes every permission anew.

    That took longer than most of the tests that need it.
    """

    def handle(self, **options: Any) -> None:
        connection = connections[options["database"]]
        tables = _with_rows(connection)
        if tables:
            sql = connection.ops.sql_flush(no_style(), tables, allow_cascade=True)
            connection.ops.execute_sql_flush(sql)


def _with_rows(connection: BaseDatabaseWrapper) -> list[str]:
    tables = sorted({*connection.introspection.django_table_names(only_existing=True)} - KEPT)
    quoted = map(connection.ops.quote_name, tables)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'EXISTS (SELECT 1 FROM {each})' for each in quoted)}")
        found = cursor.fetchone()
    return [table for table, has_rows in zip(tables, found, strict=True) if has_rows]
