"""The mutations still break what is there, and one that nobody notices is told."""

from __future__ import annotations

import pytest

from tests.support.mutations import run
from tests.support.mutations.catalog import MUTATIONS
from tests.support.mutations.mutation import Mutation
from tests.support.mutations.run import ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_formula_stands_where_the_mutation_looks_for_it(mutation: Mutation):
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1
    assert all((ROOT / test.partition("::")[0]).is_file() for test in mutation.tests)


@pytest.mark.timeout(600)  # it starts a run of tests of its own, beside all others
def test_a_mutant_that_no_test_notices_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    file, tests = "scheduling/core/capacity/kv.py", ("tests/unit/core/engine/test_step_time.py",)
    text = (ROOT / file).read_text(encoding="utf-8")
    first = text.splitlines()[0]  # the docstring, which no test reads
    monkeypatch.setattr(run, "MUTATIONS", (Mutation("harmless", "nothing", file, first, first + "\n", tests),))
    assert run.main([]) == 1
    assert "SURVIVED" in capsys.readouterr().out
    assert (ROOT / file).read_text(encoding="utf-8") == text
