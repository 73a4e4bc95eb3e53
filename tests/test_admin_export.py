"""Lists as CSV: who may have them, what is in them, and what a spreadsheet makes of it."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobqueue.admin import payloads
from jobqueue.admin.export import as_csv
from jobqueue.models import Attempt, DeadLetter, Job, Lease, OperationLog
from tests.admin_site import admins, make
from tests.factories import AttemptFactory, DeadLetterFactory, JobFactory, OperationLogFactory
from tests.test_admin_operations import list_url, staff
from tests.test_admin_pages import MARKUP, log_in, registered, write

pytestmark = pytest.mark.django_db

EXPORTED = [each.model for each in admins() if "export_csv" in (each.actions or ())]
every_export = pytest.mark.parametrize("model", EXPORTED, ids=lambda model: model.__name__)
MAY = ("view_job", "view_attempt", "view_deadletter", "view_lease", "view_operationlog")
SECRET = "hunter2-never-to-be-seen"


def export(client: Client, model: type[Model], *pks: int, query: str = "", **extra: str) -> Any:
    data = {"action": "export_csv", "_selected_action": pks or (0,), "index": "0"}
    return client.post(f"{list_url(model)}?{query}", data | extra)


def read(response: Any) -> list[dict[str, str]]:
    """Read a file as a spreadsheet does."""
    assert response.status_code == 200
    text = b"".join(response.streaming_content).decode()
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def client() -> Client:
    """Someone who may export, but not see payloads."""
    return staff(*MAY, "export_rows")


class TestExport:
    def test_is_there_for_all_the_big_lists(self) -> None:
        assert {Attempt, DeadLetter, Job, Lease, OperationLog} <= set(EXPORTED)

    @every_export
    def test_has_a_line_for_each_row_picked(self, client: Client, model: type[Model]) -> None:
        rows = [make(model) for _ in range(3)]
        lines = read(export(client, model, rows[0].pk, rows[2].pk))
        assert {line["id"] for line in lines} == {str(rows[0].pk), str(rows[2].pk)}
        assert set(lines[0]) == set(admin.site.get_model_admin(model).exported)

    @every_export
    def test_of_all_that_match_has_a_line_for_each(
        self, client: Client, model: type[Model]
    ) -> None:
        rows = [make(model) for _ in range(3)]
        lines = read(export(client, model, rows[0].pk, select_across="1"))
        # The log's export has its own line as well.
        assert {line["id"] for line in lines} >= {str(row.pk) for row in rows}
        assert len(lines) == 3 + (model is OperationLog)

    def test_follows_the_filters_of_the_list(self, client: Client) -> None:
        wanted, other = JobFactory(queue_name="mail"), JobFactory()
        lines = read(export(client, Job, other.pk, query="queue=mail", select_across="1"))
        assert [line["id"] for line in lines] == [str(wanted.pk)]

    @every_export
    def test_is_a_file_that_no_browser_opens_as_a_page(
        self, client: Client, model: type[Model]
    ) -> None:
        response = export(client, model, make(model).pk)
        assert response.streaming
        assert response["Content-Type"] == "text/csv; charset=utf-8"
        assert response["X-Content-Type-Options"] == "nosniff"
        name = rf'attachment; filename="jobqueue-{model._meta.model_name}-\d{{8}}T\d{{6}}Z\.csv"'
        assert re.fullmatch(name, response["Content-Disposition"])

    @every_export
    def test_is_refused_without_the_permission(self, model: type[Model]) -> None:
        row = make(model)
        for codenames in (MAY, (*MAY, "view_payload"), ("export_rows",)):
            response = export(staff(*codenames), model, row.pk, select_across="1")
            assert not response.streaming
        assert not OperationLog.objects.filter(action="export").exists()

    def test_ends_with_a_line_that_says_so_where_there_is_more(
        self, client: Client, settings: Any
    ) -> None:
        settings.JOBQUEUE = {"ADMIN_SCAN_LIMIT": 2}
        rows = [JobFactory() for _ in range(3)]
        lines = read(export(client, Job, rows[0].pk, select_across="1"))
        assert [line["id"] for line in lines[:2]] == [str(rows[2].pk), str(rows[1].pk)]
        assert lines[2]["id"] == "There are more: only the first 2 rows are here."
        settings.JOBQUEUE = {"ADMIN_SCAN_LIMIT": 3}
        assert len(read(export(client, Job, rows[0].pk, select_across="1"))) == 3

    def test_reads_the_rows_once_and_only_what_it_writes(self, client: Client) -> None:
        for _ in range(5):
            JobFactory()
        response = export(client, Job, 0, select_across="1")
        with CaptureQueriesContext(connection) as captured:
            assert len(read(response)) == 5
        jobs = [each["sql"] for each in captured if '"jobqueue_job"' in each["sql"]]
        assert len(jobs) <= 1
        for sql in jobs:
            assert '"args"' not in sql
            assert '"result"' not in sql


class TestFormulas:
    @pytest.mark.parametrize(
        "text",
        ["=cmd|'/c calc'!A1", "+1", "-1+2", "@SUM(A1)", "\tx", "\rx", "\n=1", " =1", "＝1"],  # noqa: RUF001
    )
    def test_are_text(self, client: Client, text: str) -> None:
        letter = DeadLetterFactory(message=text, error_class=text)
        [line] = read(export(client, DeadLetter, letter.pk))
        assert line["message"] == line["error_class"] == f"'{text}"

    @pytest.mark.parametrize(
        "unseen", ["\u00a0", "\ufeff", "\u200b", "\x0b", "\u202e", "\x1b \u3000"]
    )
    def test_are_text_behind_what_cannot_be_seen(self, unseen: str) -> None:
        [_, line] = as_csv(["a"], [[f"{unseen}=1+1"]])
        assert line.decode().rstrip().strip('"') == f"'{unseen}=1+1"

    def test_are_text_where_semicolons_separate(self) -> None:
        """A sheet of many languages takes what follows a semicolon for the next cell."""
        [_, line] = as_csv(["a"], [["sent; =cmd|'/c calc'!A1;-1; b"]])
        assert line.decode().rstrip() == "sent;' =cmd|'/c calc'!A1;'-1; b"

    def test_leave_numbers_and_quotes_alone(self, client: Client) -> None:
        message = 'a,"b";c\r\nd' + MARKUP
        letter = DeadLetterFactory(priority=-5, message=message)
        [line] = read(export(client, DeadLetter, letter.pk))
        assert line["priority"] == "-5"
        assert line["message"] == message

    def test_in_payloads_are_text(self) -> None:
        client = staff(*MAY, "export_rows", "view_payload")
        job = JobFactory(succeeded=True, result="=1+1")
        write(job, kwargs='"-2"')
        [line] = read(export(client, Job, job.pk))
        assert line["result"] == '"=1+1"'  # JSON: in quotation marks
        assert line["kwargs"] == '"-2"'


class TestPayloads:
    def test_are_there_for_those_who_may_see_them_with_secrets_masked(self) -> None:
        """C-98"""
        secrets = {"password": SECRET, "plain": "p"}
        rows: list[Any] = [
            JobFactory(succeeded=True, kwargs=secrets, trace=secrets, result=secrets),
            JobFactory(task="tests.log_in", args=["me", SECRET]),
            DeadLetterFactory(kwargs=secrets),
        ]
        client = staff(*MAY, "export_rows", "view_payload")
        with registered("tests.log_in", log_in):
            for row in rows:
                [line] = read(export(client, type(row), row.pk))
                assert SECRET not in str(line)
                assert payloads.MASK in str(line)
                assert {"args", "kwargs", "trace"} <= set(line)

    def test_that_cannot_be_read_say_why_and_spoil_no_other_row(self) -> None:
        bad, good = JobFactory(), JobFactory(kwargs={"a": 1})
        write(bad, kwargs="[" * 3000 + "]" * 3000)
        client = staff(*MAY, "export_rows", "view_payload")
        of_good, of_bad = read(export(client, Job, bad.pk, good.pk))
        assert '"a": 1' in of_good["kwargs"]
        assert of_bad["kwargs"] == "(not shown: nested too deeply)"

    def test_and_tracebacks_are_left_out_for_everybody_else(self, client: Client) -> None:
        attempt = AttemptFactory(traceback=SECRET)
        [line] = read(export(client, Attempt, attempt.pk))
        assert SECRET not in str(line)
        assert "traceback" not in line
        both = staff(*MAY, "export_rows", "view_payload")
        [line] = read(export(both, Attempt, attempt.pk))
        assert line["traceback"] == SECRET


class TestLog:
    def test_tells_who_took_what(self, client: Client) -> None:
        job = JobFactory(queue_name="mail")
        export(client, Job, job.pk, query="queue=mail", select_across="1")
        line = OperationLog.objects.get()
        assert (line.action, line.target_type, line.target_id) == ("export", "job", "")
        assert line.targets == {"queue": "mail"}
        assert line.after["columns"].startswith("id, task, status")
        assert line.correlation_id.startswith("op-")

    def test_does_not_repeat_what_was_searched_for_in_payloads(self) -> None:
        client = staff(*MAY, "export_rows", "view_payload")
        job = JobFactory(kwargs={"name": SECRET})
        export(client, Job, job.pk, query=f"q=kwargs.name:{SECRET}", select_across="1")
        assert OperationLog.objects.get().targets == {"q": "(a payload)"}

    def test_has_no_secret_in_an_export_of_itself(self, client: Client) -> None:
        line = OperationLogFactory(before={"password": SECRET}, targets={"token": SECRET})
        [exported] = read(export(client, OperationLog, line.pk))
        assert SECRET not in str(exported)
