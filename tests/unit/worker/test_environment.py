"""What of the environment reaches a worker: little, and what is let through on purpose."""

from __future__ import annotations

import pytest

from epctx.providers.onnxruntime import plugins
from epctx.worker.environment import environment


def test_it_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TZ", "GMT-14")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    found = environment({})
    assert "OMP_NUM_THREADS" not in found
    assert (found["TZ"], found["PYTHONHASHSEED"], found["LC_ALL"]) == ("UTC", "0", "C.UTF-8")


def test_what_is_varied_gets_through() -> None:
    found = environment({"TZ": "GMT-14", "CAPTURE": "me"})
    assert (found["TZ"], found["CAPTURE"]) == ("GMT-14", "me")
    assert found["PYTHONHASHSEED"] == "0"


def test_hidden_devices_are_hidden_from_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.HIDE, "QNNExecutionProvider")
    assert environment({})[plugins.HIDE] == "QNNExecutionProvider"
