"""`epctx sign` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit import signing
from tests.kit.command_line import inside


def test_it_says_who_signed_what(tmp_path: Path) -> None:
    signing.write_key(tmp_path, "k")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").touch()
    ran = inside("sign", "f", "--key", "k.pem", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("f/model.sig  1 file, signed by the key ")
    ran = inside("sign", "f", "--key", "k.pem", "--format", "json", cwd=tmp_path)
    found = json.loads(ran.stdout)
    assert (found["path"], found["files"]) == ("f/model.sig", 1)


def test_a_wrong_key_is_2(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "k.pem").touch()
    ran = inside("sign", "f", "--key", "k.pem", cwd=tmp_path)
    assert ran.returncode == 2 and "k.pem: is not a private key in PEM" in ran.stderr
    assert inside("sign", "f", "--key", "none.pem", cwd=tmp_path).returncode == 2
