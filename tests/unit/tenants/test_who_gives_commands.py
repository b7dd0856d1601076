"""Who the audit log names for a command."""

from __future__ import annotations

import getpass
import os

import pytest

from tenants.audit import Actor


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("No username set in the environment")])
def test_a_user_that_the_cluster_chose_is_named_by_its_number(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def nameless() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert Actor.at_shell() == Actor(f"uid {os.getuid()}", "cli")


def test_another_one_is_named_as_the_system_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "dana")
    assert Actor.at_shell() == Actor("dana", "cli")
