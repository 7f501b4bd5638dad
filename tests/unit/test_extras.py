import sys

import pytest

from epctx import extras
from epctx.errors import UsageError


def test_what_is_there_is_no_error_and_what_is_not_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extras.require("jinja2", "report")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match="a package that is not installed, jinja2") as caught:
        extras.require("jinja2", "report")
    assert caught.value.remedy == 'pip install "epctx[report]"'
