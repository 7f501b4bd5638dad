from pathlib import Path

import pytest

from epctx._version import __version__
from epctx.errors import ProviderUnavailable
from epctx.machines import blobs, serving
from epctx.machines.messages import Facts, decoded, encoded

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")


def test_a_worker_says_what_it_is(tmp_path: Path) -> None:
    found = serving.facts(tmp_path, None, name="farm", jobs=3)
    assert (found.name, found.epctx, found.jobs) == ("farm", __version__, 3)
    assert found.code["compile"]["epctx"].startswith("blake3:")
    assert found.cores and found.memory and found.disk
    assert decoded(encoded(found), Facts) == found


def test_without_a_scheduler_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_REACHED", 1)
    with pytest.raises(ProviderUnavailable, match="there is no scheduler"):
        serving.serve("tcp://127.0.0.1:1", None, blobs.at(tmp_path), name="w")
