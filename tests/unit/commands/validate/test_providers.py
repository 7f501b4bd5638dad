"""What EPs say of their options."""

from pathlib import Path

import pytest

from epctx.providers.onnxruntime import packages
from epctx.providers.onnxruntime.qnn import options
from tests.kit.validating import told, validated

QNN = "QNNExecutionProvider"


def entry(**given: object) -> dict[str, object]:
    return {"execution_providers.ref": {"provider": QNN, "options": given}}


@pytest.mark.needs("module onnxruntime_qnn")
def test_what_an_ep_refuses_is_told_at_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "qairt", lambda: "2.51.0")
    found = validated(tmp_path, entry(soc_model=14))
    what = "soc_model is 14, a chip that QAIRT 2.51.0 does not know"
    assert told(found)[0] == [("execution_providers.ref.options.soc_model", what)]
    assert found.exit_code == 3


def test_an_ep_that_is_not_installed_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from epctx.errors import ProviderUnavailable

    def find(*args: object, **named: object) -> None:
        raise ProviderUnavailable("is not installed", remedy="install it")

    monkeypatch.setattr(packages, "find", find)
    found = validated(tmp_path, entry(soc_model=14))
    assert found.violations == ()
