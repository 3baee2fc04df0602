"""Faults are met in a hurry: cycles a tenth of a second apart, however slow this machine answers."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_stretching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mx_operator.core.pacing._STRETCH", 0.0)
