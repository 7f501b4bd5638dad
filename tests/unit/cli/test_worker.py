from pathlib import Path

from tests.kit.command_line import epctx


def test_an_address_that_is_none_is_exit_2(tmp_path: Path) -> None:
    done = epctx("worker", "dask://local", cwd=tmp_path)
    assert done.returncode == 2 and "is not an address of machines" in done.stderr
