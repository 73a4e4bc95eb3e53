"""Break one safeguard at a time, and see that the tests notice: ``python -m tests.mutants``.

Works in a copy of the checkout. A mutant is killed when a test of its short list fails; first those
tests must pass without it. Exits with 1 when a mutant survives, or its place is not found any more.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from demo_project.database import CHECKOUT, database_url
from tests.mutations import MUTANTS, Edit, Mutant

#: What a copy of the checkout does without.
LEFT_OUT = (".git", ".postgres", ".demo", ".venv", ".tox", "__pycache__", ".*_cache", "*.egg-info")
#: Errors that say that the mutant is no working code at all, so that no test noticed anything.
BROKEN = re.compile(r"\b(ProgrammingError|SyntaxError|NameError|ImportError|UndefinedColumn)\b")
#: A test that waits in vain fails sooner in the copy; all must pass so without a mutant.
PATIENCE = ("tests/processes.py", "PATIENCE = 30.0", "PATIENCE = 10.0")
#: How long the tests of one mutant may take, in seconds.
LONGEST = 240.0
FAILED = 1  # pytest's exit code when tests failed


class Verdict(NamedTuple):
    """What the tests said."""

    word: str
    by: str = ""
    seconds: float = 0.0


class NotApplicable(Exception):
    """The text that a mutation replaces is not there exactly once."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants that were asked for; return the exit code."""
    options = _parsed(arguments)
    chosen = [mutant for mutant in MUTANTS if _is_asked_for(mutant, options.names)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:34} {mutant.database:10} {mutant.what}")
        return 0
    if not chosen:
        print("no mutant has such a name")
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        databases = {"postgresql": database_url(), "sqlite": f"sqlite:///{folder}/db.sqlite3"}
        verdicts = dict(_verdicts(copy, chosen, databases, controls=not options.no_control))
    if options.table:
        Path(options.table).write_text(_table(verdicts))
    return _summary(verdicts)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; * stands for anything")
    parser.add_argument("--list", action="store_true", help="name the mutants and do nothing")
    parser.add_argument("--table", metavar="FILE", help="write who killed whom as Markdown")
    parser.add_argument(
        "--no-control", action="store_true", help="believe that all tests pass without a mutant"
    )
    return parser.parse_args(arguments)


def _is_asked_for(mutant: Mutant, names: Sequence[str]) -> bool:
    return not names or any(fnmatch(mutant.name, name) for name in names)


def _verdicts(
    copy: Path, mutants: Sequence[Mutant], databases: Mapping[str, str], *, controls: bool
) -> Iterator[tuple[Mutant, Verdict]]:
    with _applied(copy, [Edit(*PATIENCE)]):
        if controls and not _all_pass(copy, mutants, databases):
            raise SystemExit("these tests must pass without a mutant, to say anything of one")
        for mutant in mutants:
            verdict = _try(copy, mutant, databases[mutant.database])
            print(f"{verdict.word:9} {mutant.name:34} {verdict.seconds:5.1f} s  {verdict.by}")
            sys.stdout.flush()
            yield mutant, verdict


def _all_pass(copy: Path, mutants: Iterable[Mutant], databases: Mapping[str, str]) -> bool:
    """Run all that will be asked once as it is, on each database."""
    asked: dict[str, set[str]] = {}
    for mutant in mutants:
        asked.setdefault(mutant.database, set()).update(mutant.tests)
    for database, tests in asked.items():
        code, output, seconds = _pytest(copy, sorted(tests), databases[database])
        print(f"control   {database:34} {seconds:5.1f} s  {output.splitlines()[-1:]}")
        if code:
            print(output)
            return False
    return True


def _try(copy: Path, mutant: Mutant, url: str) -> Verdict:
    try:
        with _applied(copy, mutant.edits):
            code, output, seconds = _pytest(copy, mutant.tests, url)
    except NotApplicable as error:
        return Verdict("obsolete", str(error))
    if code == 0:
        return Verdict("survived", " ".join(mutant.tests), seconds)
    failed = re.findall(r"^FAILED (\S.*)$", output, re.MULTILINE)
    if code != FAILED or not failed or BROKEN.search(failed[0]):
        print(output)
        return Verdict("broken", *failed[:1], seconds=seconds)
    return Verdict("killed", failed[0], seconds)


@contextmanager
def _applied(copy: Path, edits: Sequence[Edit]) -> Iterator[None]:
    """Make the edits for a while; raise NotApplicable unless each has exactly one place."""
    before = {edit.path: (copy / edit.path).read_text() for edit in edits}
    try:
        for edit in edits:
            text = (copy / edit.path).read_text()
            if text.count(edit.old) != 1:
                raise NotApplicable(f"{edit.path}: {text.count(edit.old)} times {edit.old!r}")
            (copy / edit.path).write_text(text.replace(edit.old, edit.new))
        yield
    finally:
        for path, text in before.items():
            (copy / path).write_text(text)


def _pytest(copy: Path, tests: Sequence[str], url: str) -> tuple[int, str, float]:
    """Run tests of the copy until one fails; return exit code, output and seconds."""
    started = time.monotonic()
    options = ("-x", "-q", "-n0", "--dist=no", "-rfE", "--tb=short", "-p", "no:cacheprovider")
    environment = {
        **os.environ,
        "COLUMNS": "200",
        "DATABASE_URL": url,
        "DATABASE_NAME": f"mutants_{os.getpid()}" if url.startswith("postgres") else "",
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant of the same second and size must be read anew
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        output += f"\nFAILED to end within {LONGEST} s\n"
    return process.returncode, output, time.monotonic() - started


def _table(verdicts: Mapping[Mutant, Verdict]) -> str:
    lines = ["| mutant | what is broken | on | killed by |", "|---|---|---|---|"]
    for mutant, verdict in verdicts.items():
        by = verdict.by.split(" - ")[0] if verdict.word == "killed" else f"**{verdict.word}**"
        lines.append(f"| `{mutant.name}` | {mutant.what} | {mutant.database} | `{by}` |")
    return "\n".join(lines) + "\n"


def _summary(verdicts: Mapping[Mutant, Verdict]) -> int:
    alive = [mutant.name for mutant, verdict in verdicts.items() if verdict.word != "killed"]
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} killed", *alive)
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
