"""The list of what CI installs: of constraints.txt, whole, each file with its digest."""

from __future__ import annotations

import re
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from scripts import hashes

LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")
DIGEST = "ab" * 32


def report(**host: str) -> dict[str, Any]:
    here = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.11"}
    a = {
        "metadata": {"name": "A_b", "version": "1.0"},
        "download_info": {"archive_info": {"hashes": {"sha256": DIGEST}}},
    }
    own = {"metadata": {"name": "epctx", "version": "0"}, "download_info": {"dir_info": {}}}
    return {"environment": here | host, "install": [own, a]}


def test_a_report_of_pips_becomes_pins_with_digests() -> None:
    _, *lines = hashes.requirements(report()).splitlines()
    assert lines == [f"a-b==1.0 --hash=sha256:{DIGEST}"]


def test_another_platforms_files_are_not_cis() -> None:
    with pytest.raises(ValueError, match=r"CI is Linux x86-64 with Python 3\.11"):
        hashes.requirements(report(python_version="3.13"))


def test_the_list_is_of_the_constraints() -> None:
    """Whoever changes constraints.txt makes the list anew: `python -m scripts.hashes`."""
    constraints = (hashes.ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in constraints)
    }
    _, *lines = hashes.REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    found = {match[1]: match[2] for match in map(LINE.fullmatch, lines) if match}
    assert len(found) == len(lines)
    assert found.items() <= pinned.items()
    assert pinned.keys() - found.keys() == {"pyreadline3", "colorama"}, "these are of Windows"
