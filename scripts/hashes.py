"""What CI installs, each file with its digest. `python -m scripts.hashes` writes the list.

The list, .ci/requirements.txt, is what pip chooses within constraints.txt on CI's own platform,
Linux x86-64 with Python 3.11: to be made there, after each change of a dependency or of
constraints.txt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / ".ci" / "requirements.txt"
WHAT = ".[dev,qnn,openvino,remote,oci,dask,report,attest,sign]"
_HEAD = "# Written by `python -m scripts.hashes`: all that CI installs for {what}\n"


def resolved() -> Mapping[str, Any]:
    """The report by pip of what it would install for a checkout, nothing being installed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        options = ["--quiet", "--report", str(report), "--constraint", "constraints.txt"]
        subprocess.run([*command, *options, WHAT], cwd=ROOT, check=True)
        read: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return read


def requirements(report: Mapping[str, Any]) -> str:
    """Of a report of pip's the requirements file: a pin and a digest of each, but of epctx itself.

    Raises:
        ValueError: it was made on another platform than CI's.
    """
    host = report["environment"]
    found = (host["sys_platform"], host["platform_machine"], host["python_version"])
    if found != ("linux", "x86_64", "3.11"):
        raise ValueError(f"CI is Linux x86-64 with Python 3.11, this is {' '.join(found)}")
    lines = [
        f"{canonicalize_name(each['metadata']['name'])}=={each['metadata']['version']}"
        f" --hash=sha256:{each['download_info']['archive_info']['hashes']['sha256']}\n"
        for each in report["install"]
        if "archive_info" in each["download_info"]  # a checkout is a folder, and has none
    ]
    return "".join([_HEAD.format(what=WHAT), *sorted(lines)])


if __name__ == "__main__":
    REQUIREMENTS.write_text(requirements(resolved()), encoding="utf-8", newline="\n")
