"""The mutants of ``python -m tests.mutants`` are about the code as it is now."""

from __future__ import annotations

from tests.mutants import CHECKOUT
from tests.mutations import MUTANTS


def test_every_mutation_has_its_place_once() -> None:
    edits = [(mutant.name, edit) for mutant in MUTANTS for edit in mutant.edits]
    found = {name: (CHECKOUT / edit.path).read_text().count(edit.old) for name, edit in edits}
    assert {name: count for name, count in found.items() if count != 1} == {}


def test_every_mutation_names_tests_that_there_are() -> None:
    for mutant in MUTANTS:
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert not name or f"class {name}" in (CHECKOUT / path).read_text(), test


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
