"""The documentation is true: what the code has is described, and what is described runs."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management.base import BaseCommand

from jobqueue import JobContext, Task, checks, conf, logs
from jobqueue.admin import checks as admin_checks
from jobqueue.management.commands.runworker import Command
from jobqueue.models import Job
from jobqueue.states import Outcome, Reason, Status
from tests import verbs
from tests.factories import JobFactory
from tests.processes import PATIENCE
from tests.test_house import CHECKOUT, PACKAGE

FENCED = re.DOTALL | re.MULTILINE
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]


def read(name: str) -> str:
    """Return a page of the documentation."""
    return (CHECKOUT / "docs" / name).read_text()


def in_first_column(text: str) -> set[str]:
    """Return what stands as code in the first column of a page's tables."""
    cells = re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE)
    return {code for cell in cells for code in re.findall(r"`([^`]+)`", cell)}


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def anchors(page: str | Path) -> Counter[str]:
    """Return the anchors of a page's headings, as they are made for Markdown."""
    text = re.sub(r"^```.*?^```", "", (CHECKOUT / "docs" / page).read_text(), flags=FENCED)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return Counter(heading.replace(" ", "-") for heading in words)


PYTHON = [
    pytest.param(path.name, code, id=f"{path.stem}-{number}")
    for path in PAGES
    for number, code in enumerate(blocks(path, "python"), start=1)
]


def run_block(page: str, containing: str) -> dict[str, Any]:
    """Execute the one Python block of a page that holds a text, and return its names."""
    [code] = [code for code in blocks(CHECKOUT / "docs" / page, "python") if containing in code]
    names: dict[str, Any] = {"__name__": "documentation"}
    exec(compile(code, page, "exec"), names)
    return names


class TestSettings:
    def test_every_one_is_described_and_no_other(self) -> None:
        keys = {field.name for field in dataclasses.fields(conf.Settings)}
        described = {name for name in in_first_column(read("settings.md")) if name.isupper()}
        assert described == keys

    def test_the_sensitive_keys_are_listed(self) -> None:
        assert all(f"`{word}`" in read("settings.md") for word in conf.Settings().SENSITIVE_KEYS)

    def test_the_example_is_accepted(self, settings: Any) -> None:
        settings.JOBQUEUE = run_block("settings.md", "JOBQUEUE =")["JOBQUEUE"]
        assert checks.check_settings() == []


def own_flags() -> set[str]:
    """Return the options that runworker adds to those of every command."""
    parsers = [each.create_parser("manage.py", "runworker") for each in (Command(), BaseCommand())]
    own, usual = [
        {option for action in parser._actions for option in action.option_strings}
        for parser in parsers
    ]
    return own - usual


class TestRunworker:
    def test_every_flag_is_described_and_no_other(self) -> None:
        cells = in_first_column(read("settings.md"))
        described = {cell.split()[0] for cell in cells if cell.startswith("--")}
        assert described == own_flags()


@functools.cache
def events() -> set[str]:
    """Return the events of all log lines that the code can write."""
    literal = re.compile(r"((?:job|worker)\.[a-z_]+)(?: \w+=%.*)?")
    found = {
        match[1]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (match := literal.fullmatch(node.value))
    }
    return found | {f"job.{outcome.value}" for outcome in Outcome} - {"job.failed", "job.timed_out"}


@pytest.fixture
def record(db: None, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    """The record of a job that was refused its dead letter: the line with the most fields."""
    JobFactory()
    with caplog.at_level(logging.DEBUG, logger="jobqueue"):
        logs.ended([verbs.buried(verbs.claim_one())], recorded=())
    return caplog.records[-1]


class TestLogLines:
    def test_every_event_is_described_and_no_other(self) -> None:
        cells = in_first_column(read("operations.md"))
        described = {cell for cell in cells if re.fullmatch(r"(job|worker)\.[a-z_]+", cell)}
        assert described == events()

    def test_events_that_depend_on_the_outcome_are_among_them(self, db: None) -> None:
        JobFactory()
        claimed = verbs.claim_one()
        for outcome in Outcome:
            for status in (*Status, None):
                assert logs._happened(verbs.ended(claimed, outcome, status))[0] in events()

    def test_every_field_is_described(self, record: Any) -> None:
        page = read("operations.md")
        assert {"reason", "err", "refused", "duration_ms"} <= set(record.fields)
        assert [name for name in record.fields if f"`{name}`" not in page] == []

    def test_the_formatter_for_json_works(self, record: Any) -> None:
        formatter = run_block("operations.md", "class JSONFormatter")["JSONFormatter"]()
        line = json.loads(formatter.format(record))
        assert line["event"] == "job.lease_lost"
        assert line["job"] == Job.objects.get().pk
        plain = logging.makeLogRecord({"msg": "worker.started worker=%s", "args": ("w",)})
        assert json.loads(formatter.format(plain))["message"] == "worker.started worker=w"


class TestOperations:
    def test_every_permission_is_named(self) -> None:
        models = apps.get_app_config("jobqueue").get_models()
        codenames = {
            codename
            for model in models
            for codename in [
                *(f"{verb}_{model._meta.model_name}" for verb in model._meta.default_permissions),
                *(codename for codename, _ in model._meta.permissions),
            ]
        }
        named = set(re.findall(r"`jobqueue\.([a-z_]+_[a-z_]+)`", read("operations.md")))
        assert named == codenames

    def test_every_system_check_is_listed(self) -> None:
        ids = re.compile(r"jobqueue\.[EW]\d{3}")
        listed = in_first_column(read("operations.md"))
        sources = inspect.getsource(checks) + inspect.getsource(admin_checks)
        assert set(filter(ids.fullmatch, listed)) == set(ids.findall(sources))

    def test_has_the_part_that_a_check_points_to(self) -> None:
        assert "See 'Network' in the deployment documentation" in inspect.getsource(checks)
        assert "\n## Network\n" in read("deployment.md")


class TestTasks:
    def test_every_option_is_described(self) -> None:
        described = in_first_column(read("tasks.md"))
        options = {field.name for field in dataclasses.fields(Task) if field.init} - {"function"}
        assert options - described == set()
        assert set(inspect.signature(Task.using).parameters) - {"self"} - described == set()

    def test_everything_in_the_context_is_described(self) -> None:
        described = {name.removesuffix("()") for name in in_first_column(read("tasks.md"))}
        public = {name for name in dir(JobContext) if not name.startswith("_")}
        assert public - {"claim", "lease"} - described == set()


class TestGuarantees:
    @pytest.mark.parametrize("reason", Reason.values)
    def test_say_when_a_job_gives_up(self, reason: str) -> None:
        assert f"`{reason}`" in read("guarantees.md")

    def test_name_tests_that_there_are(self) -> None:
        named = re.findall(
            r"`(tests/\w+\.py)` +\(([^)]+)\)", read("guarantees.md").replace("\n", " ")
        )
        assert len(named) > 5
        for path, classes in named:
            source = (CHECKOUT / path).read_text()
            for name in re.findall(r"`(\w+)`", classes):
                assert f"\nclass {name}" in source, f"{path} has no {name}"


def links() -> Iterator[tuple[str, str]]:
    """Yield each relative link with the page that it stands on."""
    for path in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text()):
            yield str(path.relative_to(CHECKOUT)), target


def links_to_parts() -> Iterator[tuple[str, str]]:
    """Yield each link to a part of a page as ``page#anchor``, with the page that it stands on."""
    for path in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text()):
            page = (path.parent / target) if target else path
            yield (
                str(path.relative_to(CHECKOUT)),
                f"{page.resolve().relative_to(CHECKOUT)}#{anchor}",
            )


class TestPages:
    @pytest.mark.parametrize(("page", "target"), list(links_to_parts()))
    def test_link_to_parts_that_there_are(self, page: str, target: str) -> None:
        path, _, anchor = target.partition("#")
        assert anchors(CHECKOUT / path)[anchor] == 1

    @pytest.mark.parametrize(("page", "target"), list(links()))
    def test_link_to_files_that_there_are(self, page: str, target: str) -> None:
        assert ((CHECKOUT / page).parent / target).exists()

    @pytest.mark.parametrize(("page", "code"), PYTHON)
    def test_hold_only_code_that_compiles(self, page: str, code: str) -> None:
        compile(code, page, "exec")


SHOP_SETTINGS = """
SECRET_KEY = "shop"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "jobqueue", "shop"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{folder}/db.sqlite3"}}}}
"""
SHOP_MODELS = """
from django.db import models

class Order(models.Model):
    total = models.IntegerField()
    class Meta:
        app_label = "shop"
"""
SHOP_NAMES = "from shop.models import Order\nfrom shop.tasks import send_receipt\n"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A new project with an app, whose tasks are those of the README."""
    app = tmp_path / "shop"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "settings.py").write_text(SHOP_SETTINGS.format(folder=tmp_path))
    (app / "models.py").write_text(SHOP_MODELS)
    (app / "tasks.py").write_text(blocks(CHECKOUT / "README.md", "python")[0])
    return tmp_path


def django_admin(project: Path, *arguments: str) -> str:
    """Run a management command of a project and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=project,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": os.pathsep.join([str(project), str(CHECKOUT)]),
        },
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class TestReadme:
    def test_its_example_runs_in_a_new_project(self, shop: Path) -> None:
        django_admin(shop, "migrate", "--run-syncdb", "-v", "0")
        django_admin(shop, "shell", "-c", SHOP_NAMES + blocks(CHECKOUT / "README.md", "python")[1])
        output = django_admin(shop, "runworker", "--until-empty")
        assert "a receipt for order 1" in output
        assert "job.succeeded" in output
