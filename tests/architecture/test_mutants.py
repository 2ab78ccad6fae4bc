"""The planted bugs of `make mutants` are about code that is there."""

from __future__ import annotations

import pytest
from tests.architecture.repository import ROOT
from tests.simulation.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_what_is_there_once(mutant):
    for file, before, after in ((mutant.file, mutant.before, mutant.after), *mutant.also):
        assert (ROOT / file).read_text().count(before) == 1, file
        assert before != after
