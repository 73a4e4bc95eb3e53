"""The rules of the house: what every module keeps to, whoever writes the next one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from django.core.management import call_command

import jobqueue

PACKAGE = Path(jobqueue.__file__).parent
CHECKOUT = PACKAGE.parent
MAX_LINES = 300

#: Imports go from a later name to an earlier one, never the other way round.
ORDER = (
    "jobqueue.exceptions",
    "jobqueue.states",
    "jobqueue.backoff",
    "jobqueue.conf",
    "jobqueue.payload",
    "jobqueue.options",
    "jobqueue.claims",
    "jobqueue.failures",
    "jobqueue.measures",
    "jobqueue.context",
    "jobqueue.registry",
    "jobqueue",
    "jobqueue.querysets",
    "jobqueue.models",
    "jobqueue.migrations",
    "jobqueue.authorisation",
    "jobqueue.stores",
    "jobqueue.failpoints",
    "jobqueue.signals",
    "jobqueue.logs",
    "jobqueue.stats",
    "jobqueue.lifecycle",
    "jobqueue.transactions",
    "jobqueue.verdicts",
    "jobqueue.runner",
    "jobqueue.worker",
    "jobqueue.checks",
    "jobqueue.backends",
    "jobqueue.admin",
    "jobqueue.templatetags",
    "jobqueue.testing",
    "jobqueue.management",
    "jobqueue.apps",
    "jobqueue.contrib",
)

#: Imports inside a function, each with the reason why it is not at the top.
LAZY = {
    ("jobqueue", "jobqueue.lifecycle"): "tasks modules are imported before the models are ready",
    ("jobqueue.registry", "jobqueue.lifecycle"): "as above",
    ("jobqueue.apps", "jobqueue.checks"): "registers checks, once the models are ready",
    ("jobqueue.apps", "jobqueue.logs"): "connects receivers, once the models are ready",
}

#: Where something may be imported by a path, and whose path that is.
BY_PATH = {"jobqueue.stores": "its own table of stores, never a path from a row"}


class Import(NamedTuple):
    importer: str
    imported: str
    is_lazy: bool


def name_of(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
WRITTEN = [name for name in MODULES if ".migrations." not in name]
SHEETS = sorted(PACKAGE.rglob("static/**/*.css"))
TEMPLATES = sorted(PACKAGE.rglob("templates/**/*.html"))


def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imports(node: ast.AST, importer: str, *, is_lazy: bool = False) -> Iterator[Import]:
    """Find the imports of our own modules; those only for type checkers do not count."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{importer} has a relative import"
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        names = [name if name in MODULES else str(node.module) for name in inner]
    else:
        is_lazy = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from imports(child, importer, is_lazy=is_lazy)
        return
    yield from (Import(importer, name, is_lazy) for name in names if name in MODULES)


def place(module: str) -> int:
    """Return where a module, or the package that it is in, stands in the order."""
    for name in (module, module.rpartition(".")[0], ".".join(module.split(".")[:2])):
        if name in ORDER and (name != "jobqueue" or module == "jobqueue"):
            return ORDER.index(name)
    raise AssertionError(f"{module} has no place in ORDER")


ALL_IMPORTS = [found for name in WRITTEN for found in imports(tree_of(name), name)]


class TestImports:
    def test_run_one_way(self) -> None:
        wrong = [
            f"{importer} imports {imported}"
            for importer, imported, is_lazy in ALL_IMPORTS
            if not is_lazy and place(imported) > place(importer)
        ]
        assert not wrong

    def test_have_no_cycle(self) -> None:
        graph: dict[str, set[str]] = {}
        for importer, imported, is_lazy in ALL_IMPORTS:
            if not is_lazy:
                graph.setdefault(importer, set()).add(imported)
        TopologicalSorter(graph).prepare()

    def test_are_at_the_top_but_for_a_named_few(self) -> None:
        lazy = {(importer, imported) for importer, imported, is_lazy in ALL_IMPORTS if is_lazy}
        assert lazy == set(LAZY)

    def test_of_every_kind_are_found(self) -> None:
        code = """
import jobqueue.models
from jobqueue import conf, task
if TYPE_CHECKING:
    from jobqueue import signals
def late():
    from jobqueue.stores import Store
"""
        assert set(imports(ast.parse(code), "x")) == {
            Import("x", "jobqueue.models", is_lazy=False),
            Import("x", "jobqueue.conf", is_lazy=False),
            Import("x", "jobqueue", is_lazy=False),
            Import("x", "jobqueue.stores", is_lazy=True),
        }


WRITING_CALLS = {"Job", "setattr", "update", "create", "get_or_create", "update_or_create"}
WRITING_CALLS |= {f"a{name}" for name in WRITING_CALLS} | {"bulk_update", "abulk_update"}
WRITING_SQL = re.compile(r"\b(UPDATE|INSERT)\b.*\bstatus\b", re.DOTALL)


def status_writes(tree: ast.AST) -> list[str]:
    """Find what writes a job's status, whether in Python, with the ORM or in SQL."""
    return [ast.unparse(node) for node in ast.walk(tree) if _writes_status(node)]


def _writes_status(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="status", ctx=ast.Store()):
            return True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in WRITING_CALLS:
            named = any(keyword.arg == "status" for keyword in node.keywords)
            quoted = any(
                isinstance(part, ast.Constant) and part.value == "status"
                for argument in [*node.args, *node.keywords]
                for part in ast.walk(argument)
            )
            return named or quoted
        case ast.Constant(value=str(text)):
            return bool(WRITING_SQL.search(text))
    return False


class TestStatus:
    @pytest.mark.parametrize("module", WRITTEN)
    def test_is_written_by_the_lifecycle_alone(self, module: str) -> None:
        if module.startswith(("jobqueue.lifecycle", "jobqueue.stores")):
            return
        assert not status_writes(tree_of(module))

    @pytest.mark.parametrize(
        "code",
        [
            "job.status = 'pending'",
            "jobs.filter(pk=1).update(status='pending')",
            "Job(status='pending')",
            "setattr(job, 'status', 'pending')",
            "Job.objects.bulk_update(jobs, ['status'])",
            "cursor.execute('UPDATE jobqueue_job SET status = 1')",
        ],
    )
    def test_writing_it_is_found_in_every_form(self, code: str) -> None:
        assert status_writes(ast.parse(code))

    def test_reading_it_is_allowed(self) -> None:
        code = "jobs.filter(status='pending'); job.status; 'SELECT status FROM jobqueue_job'"
        assert not status_writes(ast.parse(code))


DANGEROUS_MODULES = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle"}
DANGEROUS_NAMES = {"eval", "exec", "__import__", "import_module", "import_string", "mark_safe"}


def dangers(tree: ast.AST) -> set[str]:
    """Find what turns data into code or into unescaped HTML."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & DANGEROUS_MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} & DANGEROUS_MODULES
        elif isinstance(node, ast.Name):
            found |= {node.id} & DANGEROUS_NAMES
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & DANGEROUS_NAMES
        elif isinstance(node, ast.Call):  # as an annotation it is harmless
            found |= {ast.unparse(node.func).rpartition(".")[2]} & {"SafeString"}
    return found


class TestSafety:
    @pytest.mark.parametrize("module", WRITTEN)
    def test_no_data_becomes_code_or_html(self, module: str) -> None:
        allowed = {"import_string"} if module in BY_PATH else set()
        assert dangers(tree_of(module)) == allowed

    @pytest.mark.parametrize(
        "code",
        [
            "import pickle",
            "from yaml import load",
            "eval(text)",
            "importlib.import_module(row.task)",
            "import_string(row.task)",
            "safestring.mark_safe(text)",
            "safestring.SafeString(text)",
        ],
    )
    def test_dangers_are_found_in_every_form(self, code: str) -> None:
        assert dangers(ast.parse(code))

    @pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
    def test_no_template_holds_code_style_or_unescaped_text(self, template: Path) -> None:
        assert not UNSAFE_HTML.findall(template.read_text())

    @pytest.mark.parametrize(
        "html",
        [
            "{{ error|safe }}",
            "{% autoescape off %}",
            "<p style='color: red'>",
            "<style>",
            "<script>alert(1)</script>",
            "<button onclick='go()'>",
            "<a href='javascript:go()'>",
        ],
    )
    def test_unsafe_html_is_found_in_every_form(self, html: str) -> None:
        assert UNSAFE_HTML.search(html)

    def test_a_script_in_a_file_of_its_own_is_allowed(self) -> None:
        assert not UNSAFE_HTML.search("<script src=\"{% static 'x.js' %}\" defer></script>")


class TestStyle:
    @pytest.mark.parametrize("sheet", SHEETS, ids=lambda path: path.name)
    def test_every_block_is_closed_before_the_next_begins(self, sheet: Path) -> None:
        """A brace lost in a merge would silently switch off all that follows."""
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text(), flags=re.DOTALL)
        depth = 0
        for brace in re.findall(r"[{}]", text):
            depth += 1 if brace == "{" else -1
            assert depth in ((0, 1, 2) if "@media" in text else (0, 1))
        assert depth == 0


UNSAFE_HTML = re.compile(
    r"\|\s*safe\b|autoescape\s+off|<style|\sstyle\s*=|<script(?![^>]*\ssrc=)|\son\w+\s*=|javascript:",
    re.IGNORECASE,
)


class TestSize:
    @pytest.mark.parametrize("module", WRITTEN)
    def test_no_module_is_too_long_to_read(self, module: str) -> None:
        assert len(MODULES[module].read_text().splitlines()) <= MAX_LINES


class TestMigrations:
    @pytest.mark.django_db
    def test_none_is_missing(self) -> None:
        # Exits when there is something to migrate.
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def readme_commands() -> list[str]:
    """Return the commands of the README's fenced ``sh`` blocks, in order."""
    text = (CHECKOUT / "README.md").read_text()
    return [
        block.strip() for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


class TestReadme:
    def test_starts_with_two_commands_that_are_complete_by_themselves(self) -> None:
        demo, tests = readme_commands()[:2]
        for command in (demo, tests):
            assert command.startswith("python3 -m venv ")
            assert "pip install -r requirements.txt" in command
        assert demo.endswith("python manage.py demo")
        assert tests.endswith("pytest")


class TestChangelog:
    def test_speaks_of_this_version(self) -> None:
        assert f"## {jobqueue.__version__} " in (CHECKOUT / "CHANGELOG.md").read_text()
