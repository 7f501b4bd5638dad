import subprocess
import sys
from pathlib import Path

import pytest

from epctx import codec
from epctx.machines.local import Start

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")


def test_it_ends_with_what_started_it(tmp_path: Path) -> None:
    start = Start(
        contact="tls://127.0.0.1:1", blobs=tmp_path, name="w", jobs=1, ca="", cert="", key=""
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "epctx.machines"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(codec.encode(start) + b"\n")
    process.stdin.close()
    process.wait(timeout=30)
