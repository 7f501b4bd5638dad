import subprocess
import sys
from pathlib import Path

import pytest

from epctx.cache.location import Location
from epctx.cache.temporary import Temporary, settle
from epctx.errors import StorageError

KILLED = """
import os, sys
from pathlib import Path
from epctx.cache.location import Location
from epctx.cache.temporary import Temporary

temporary = Temporary(Location(folder=Path(sys.argv[1])))
path = temporary.path()
path.write_bytes(b"half")
print(path, flush=True)
os.kill(os.getpid(), 9) if os.name != "nt" else os._exit(9)
"""


def entries(location: Location) -> list[str]:
    return sorted(p.name for p in (location.root / "temporary").rglob("*"))


def test_paths_are_new_and_gone_after_it(location: Location) -> None:
    temporary = Temporary(location)
    one, two = temporary.path(), temporary.path()
    assert one != two
    one.write_bytes(b"one")
    temporary.close()
    assert entries(location) == []
    temporary.path().write_bytes(b"again")
    temporary.close()
    assert entries(location) == []


def test_what_a_killed_process_left_is_swept_and_a_living_ones_is_not(location: Location) -> None:
    living = Temporary(location)
    mine = living.path()
    mine.write_bytes(b"mine")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(location.folder)], capture_output=True, text=True
    )
    left = Path(killed.stdout.strip())
    assert left.read_bytes() == b"half"
    third = Temporary(location)
    third.path()
    assert not left.parent.exists()
    assert mine.read_bytes() == b"mine"
    third.close()
    living.close()
    assert entries(location) == []


ENDED = """
import sys
from pathlib import Path
from epctx.cache.location import Location
from epctx.cache.temporary import Temporary

kept = Temporary(Location(folder=Path(sys.argv[1])))
kept.path().write_bytes(b"half")
"""


def test_a_process_that_ends_and_an_object_that_is_gone_leave_nothing(location: Location) -> None:
    subprocess.run([sys.executable, "-c", ENDED, str(location.folder)], check=True)
    assert entries(location) == []
    gone = Temporary(location)
    gone.path().write_bytes(b"half")
    del gone
    assert entries(location) == []


def test_settle_replaces_and_makes_the_folder(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        (tmp_path / "new").write_bytes(content)
        settle(tmp_path / "new", tmp_path / "ab" / "abc")
        assert (tmp_path / "ab" / "abc").read_bytes() == content
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"one")
    (tmp_path / "ab").write_text("a file")
    with pytest.raises(StorageError, match="cannot be written"):
        settle(tmp_path / "new", tmp_path / "ab" / "abc")


def test_a_folder_that_cannot_be_made(location: Location) -> None:
    location.make()
    (location.root / "temporary").write_text("a file")
    with pytest.raises(StorageError, match="cannot be written"):
        Temporary(location).path()
