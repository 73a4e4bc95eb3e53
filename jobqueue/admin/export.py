"""Lists as CSV: no more rows than the admin reads at a time, and nothing that a sheet would run."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import conf, lifecycle
from jobqueue.admin import payloads, search
from jobqueue.admin.base import M, ReadOnlyAdmin
from jobqueue.admin.operations import actor, new_correlation_id
from jobqueue.lifecycle import audit
from jobqueue.models import MAX_REASON, Job
from jobqueue.payload import clean_text

#: What a text must not begin with, or a spreadsheet takes it for a formula; white space and what
#: cannot be seen do not count. Where lists are separated by semicolons a cell ends at each of them.
_UNSEEN = r"[\s\x00-\x1f\x7f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*"
_FORMULA = re.compile(rf"^(?=[\t\r\n])|(?:^|;)(?={_UNSEEN}[=+\-@＝＋－＠])")  # noqa: RUF001 - meant
#: Rows read at a time.
CHUNK = 500


class ExportedAdmin(ReadOnlyAdmin[M]):
    """Offers the rows of a list as CSV to those who may."""

    #: The columns for everybody who may export.
    exported: ClassVar[Sequence[str]] = ()
    #: JSON columns for those who may see payloads too, masked as on the pages.
    exported_json: ClassVar[Sequence[str]] = ()
    #: Columns of text for those who may see payloads too.
    exported_text: ClassVar[Sequence[str]] = ()

    def has_export_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may export rows."""
        user: Any = request.user
        return bool(user.has_perm(f"{Job._meta.app_label}.export_rows"))

    @admin.action(permissions=["export"], description=gettext_lazy("Export selected rows as CSV"))
    def export_csv(self, request: HttpRequest, queryset: QuerySet[M]) -> StreamingHttpResponse:
        """Send the rows as they are read, and leave a line in the operation log before."""
        if not (self.has_view_permission(request) and self.has_export_permission(request)):
            raise PermissionDenied
        sees_payload = payloads.may_see(request)
        texts = list(self.exported_text) if sees_payload else []
        jsons = list(self.exported_json) if sees_payload else []
        columns = [*self.exported, *texts, *jsons]
        self._log_export(request, columns)
        lines = as_csv(columns, self._read(queryset, texts, jsons))
        name = f"jobqueue-{self.opts.model_name}-{datetime.now(tz=UTC):%Y%m%dT%H%M%SZ}.csv"
        return StreamingHttpResponse(
            lines,
            content_type="text/csv; charset=utf-8",
            headers={
                "Content-Disposition": f'attachment; filename="{name}"',
                "X-Content-Type-Options": "nosniff",
            },
        )

    def _read(
        self, rows: QuerySet[M], texts: Sequence[str], jsons: Sequence[str]
    ) -> Iterator[Sequence[Any]]:
        """Yield the rows, and at the end a line that says so if there are more."""
        limit = conf.get().ADMIN_SCAN_LIMIT
        # As text, cut: a payload that cannot be read spoils no other row.
        stored = [
            Left(Cast(name, TextField()), payloads.MOST_CHARACTERS + 1) for name in (*texts, *jsons)
        ]
        wanted: Any = rows.values_list("task" if jsons else "pk", *self.exported, *stored)
        plain = 1 + len(self.exported) + len(texts)
        number = 0
        for number, row in enumerate(wanted[: limit + 1].iterator(chunk_size=CHUNK), start=1):
            if number > limit:
                yield [
                    _("There are more: only the first %(count)s rows are here.") % {"count": limit}
                ]
                return
            task = row[0]
            yield [*row[1:plain], *_shown(task, jsons, row[plain:])]

    def _log_export(self, request: HttpRequest, columns: Sequence[str]) -> None:
        """Tell who took which columns of which rows away; what was searched for stays private."""
        chosen: dict[str, Any] = {
            name: clean_text(str(value), limit=MAX_REASON) for name, value in request.GET.items()
        }
        if search.is_of_payloads(chosen.get("q", "")):
            chosen["q"] = _("(a payload)")
        if request.POST.get("select_across", "0") == "0":
            chosen["picked"] = len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))
        audit.record(
            "export",
            self.model,
            [""],
            by=actor(request),
            using=lifecycle.alias(),
            filters=chosen,
            after={"columns": ", ".join(columns)},
            correlation_id=new_correlation_id(),
        )


def _shown(task: str, columns: Sequence[str], stored: Iterable[str | None]) -> Iterator[str]:
    for column, text in zip(columns, stored, strict=True):
        yield payloads.as_text(text, payloads.argument_names(task) if column == "args" else ())


class _Echo:
    """A file that gives back what is written to it."""

    def write(self, line: str) -> bytes:
        """Return the line as it is sent."""
        return line.encode(errors="backslashreplace")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[bytes]:
    """Yield the lines of a CSV file."""
    writer = csv.writer(_Echo())
    yield writer.writerow(columns)
    for row in rows:
        yield writer.writerow([_cell(value) for value in row])


def _cell(value: Any) -> Any:
    """Return a value as it stands in a cell, where no program takes it for a formula."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _FORMULA.sub(r"\g<0>'", value) if isinstance(value, str) else value
