"""Tasks: module-level functions under stable names, found at start-up and checked there."""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobqueue import JobContext, Task, registry, task
from jobqueue.exceptions import InvalidArguments, InvalidJob, InvalidTask, UnknownTask
from tests import tasks
from tests.projects import Project


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "tasks", registry.tasks.copy())


def plain(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def other() -> None: ...


def with_context(context: JobContext, key: str) -> str:
    return key


async def coroutine(key: str) -> str:
    await asyncio.sleep(0)
    return key


class Methods:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...


class Callable_:  # noqa: N801 - a class that is called
    async def __call__(self) -> None: ...


def closure() -> Any:
    def inner() -> None: ...

    return inner


class TestTask:
    def test_is_registered_under_its_module_and_name(self) -> None:
        made = task(plain)
        assert made.name == "tests.test_registry.plain"
        assert registry.get(made.name) is made

    def test_keeps_being_the_function(self) -> None:
        made = task(plain)
        assert made(1, b=3) == 4
        assert (made.__name__, made.__doc__) == ("plain", "Add two numbers.")
        assert made.__wrapped__ is plain  # type: ignore[attr-defined]

    def test_has_documented_defaults(self) -> None:
        made = task(plain)
        assert (made.queue_name, made.priority, made.max_attempts) == ("default", 0, None)
        assert (made.lease, made.timeout, made.version, made.atomic) == (None, None, 1, False)

    def test_takes_options_and_a_name_of_its_own(self) -> None:
        made = task(name="shop.plain", queue_name="mail", priority=-100, max_attempts=1)(plain)
        assert registry.get("shop.plain") is made
        assert (made.queue_name, made.priority, made.max_attempts) == ("mail", -100, 1)

    def test_takes_one_exception_or_several(self) -> None:
        assert task(name="a", retry_on=OSError)(plain).retry_on == (OSError,)
        assert task(name="b", give_up_on=(OSError, KeyError))(plain).give_up_on == (
            OSError,
            KeyError,
        )

    def test_is_known_by_its_aliases_too(self) -> None:
        made = task(name="new", aliases=("old", "older"))(plain)
        assert {registry.get(name) for name in ("new", "old", "older")} == {made}

    def test_may_be_decorated_before(self) -> None:
        @functools.wraps(plain)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs) * 10

        made = task(wrapper)
        assert made(1) == 30
        with pytest.raises(InvalidArguments):
            made.check_arguments([], {})

    def test_may_be_a_coroutine_function(self) -> None:
        """C-37; that it is awaited: test_runner."""
        assert isinstance(task(coroutine), Task)

    @pytest.mark.parametrize(
        "function",
        [
            Methods.method,
            Methods().method,
            Methods.static,
            Callable_(),
            Callable_,
            closure(),
            lambda: None,
            functools.partial(plain, 1),
            print,
            "plain",
        ],
    )
    def test_must_be_a_module_level_function(self, function: Any) -> None:
        """C-37, C-90."""
        with pytest.raises(InvalidTask, match="function"):
            task(name="x")(function)
        assert "x" not in registry.tasks

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"priority": 101}, "priority"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"queue_name": "A"}, "queue_name"),
            ({"version": 0}, "version"),
            ({"version": 40_000}, "version"),
            ({"lease": 60}, "lease"),
            ({"lease": timedelta(0)}, "lease"),
            (
                {"lease": timedelta(milliseconds=999)},
                "lease of x must be a timedelta of at least 1 s",
            ),
            ({"timeout": timedelta(0)}, "timeout"),
            ({"timeout": timedelta(days=5000)}, "timeout"),
            ({"takes_context": True}, "takes_context"),
            ({"backoff": 5}, "backoff"),
            ({"nonsense": 5}, "nonsense"),
        ],
    )
    def test_refuses_an_option_that_makes_no_sense(
        self, options: dict[str, Any], named: str
    ) -> None:
        """C-06, C-85: at import, not at the first job."""
        with pytest.raises((InvalidTask, InvalidJob, TypeError), match=named):
            task(name="x", **options)(plain)
        assert "x" not in registry.tasks

    @pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "ä", "-a", "x" * 201, "a;b", "<b>"])
    def test_refuses_a_name_that_could_not_be_shown(self, name: str) -> None:
        with pytest.raises(InvalidTask, match="cannot name"):
            registry.register(Task(function=plain, name=name))


class TestNames:
    """C-90."""

    def test_that_two_tasks_share_are_an_error_that_names_both(self) -> None:
        task(name="shared")(plain)
        with pytest.raises(InvalidTask, match="shared") as caught:
            task(name="shared")(other)
        assert "plain (" in str(caught.value)
        assert "other (" in str(caught.value)
        assert str(Path(__file__)) in str(caught.value)
        assert registry.get("shared").function is plain

    def test_that_an_alias_shares_are_an_error_and_register_nothing(self) -> None:
        task(name="shared")(plain)
        with pytest.raises(InvalidTask, match="two tasks are named 'shared'"):
            task(name="fresh", aliases=("shared",))(other)
        assert "fresh" not in registry.tasks

    def test_of_the_identical_function_may_come_twice(self) -> None:
        task(name="twice")(plain)
        again = task(name="twice")(plain)
        assert registry.get("twice") is again

    def test_of_a_module_imported_twice_may_come_twice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "again.py"
        path.write_text("from jobqueue import task\n@task(name='again')\ndef again(): ...\n")
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module("again")
        importlib.reload(module)
        assert registry.get("again") is module.again
        monkeypatch.delitem(sys.modules, "again")

    def test_that_nobody_registered_are_unknown(self) -> None:
        with pytest.raises(UnknownTask, match=r"'os\.system'"):
            registry.get("os.system")


class TestArguments:
    def test_are_checked_against_the_signature(self) -> None:
        made = task(plain)
        made.check_arguments([1], {"b": 2})
        for args, kwargs in (([], {}), ([1, 2, 3], {}), ([1], {"c": 3}), ([1, 2], {"b": 2})):
            with pytest.raises(InvalidArguments, match=r"do not fit tests\.test_registry\.plain"):
                made.check_arguments(args, kwargs)

    def test_do_not_include_the_context(self) -> None:
        made = task(takes_context=True)(with_context)
        made.check_arguments(["k"], {})
        with pytest.raises(InvalidArguments):
            made.check_arguments([None, "k"], {})
        with pytest.raises(InvalidArguments):
            made.check_arguments(["k"], {"context": None})


class TestDiscovery:
    def test_finds_the_tasks_of_installed_apps(self) -> None:
        assert registry.get("tests.tasks.noop") is tasks.noop
        assert "orders.send_receipt" in registry.tasks

    def test_lists_the_leases_that_tasks_set(self) -> None:
        assert registry.leases()[tasks.leased.name] == 420
        assert tasks.noop.name not in registry.leases()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


TWO_OF_A_NAME = """
from jobqueue import task
@task(name='x')
def a(): ...
@task(name='x')
def b(): ...
"""
RUN_ONE = """
from jobqueue import registry, testing
registry.get("shop.models.in_models").enqueue()
print(len(registry.tasks), testing.run_jobs()[0].outcome)
"""


class TestStartUp:
    @pytest.mark.parametrize(
        ("code", "error"),
        [
            ("def broken(:\n", "SyntaxError"),
            ("import nosuchpackage\n", "No module named 'nosuchpackage'"),
            ("raise RuntimeError('in tasks')\n", "RuntimeError: in tasks"),
            (TWO_OF_A_NAME, "two tasks are named 'x'"),
        ],
    )
    def test_stops_with_the_real_error_of_a_tasks_module(
        self, code: str, error: str, project: Project
    ) -> None:
        """C-89, C-90."""
        project.write("shop/tasks.py", code)
        done = project.manage("check")
        assert done.returncode != 0
        assert error in done.stderr
        assert "tasks.py" in done.stderr

    def test_takes_a_package_of_tasks_and_an_app_without_any(self, project: Project) -> None:
        """C-89."""
        project.write("shop/tasks/__init__.py", "from shop.tasks.mail import send")
        project.write("shop/tasks/mail.py", "from jobqueue import task\n@task\ndef send(): ...\n")
        done = project.manage(
            "shell", "-c", "from jobqueue import registry; print(list(registry.tasks))"
        )
        assert "shop.tasks.mail.send" in done.stdout, done.stderr

    def test_needs_no_ready_app_no_table_and_no_admin(self, project: Project) -> None:
        """C-92, C-110: tasks where an app begins, in a project without auth and admin."""
        decorated = "from jobqueue import task\n@task\ndef {}(): ...\n"
        project.settings(apps=("shop", "jobqueue"), more="import helpers\n")
        project.write("helpers.py", decorated.format("in_settings"))
        project.write("shop/__init__.py", decorated.format("in_init"))
        project.write("shop/models.py", decorated.format("in_models"))
        project.write(
            "shop/apps.py",
            decorated.format("in_apps")
            + "from django.apps import AppConfig\nclass Shop(AppConfig):\n    name = 'shop'\n",
        )
        for command in (["check"], ["migrate", "-v0"], ["runworker", "--until-empty", "-v0"]):
            done = project.manage(*command)
            assert done.returncode == 0, done.stderr
        counted = project.manage("shell", "-c", RUN_ONE)
        assert "4 succeeded" in counted.stdout, counted.stderr
