"""ONNX's own node tests, collected once for all processes of a test run: that takes ten seconds."""

from __future__ import annotations

import os
import pickle
import warnings
from functools import cache
from pathlib import Path

from filelock import FileLock
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase


@cache
def cases(folder: Path) -> tuple[TestCase, ...]:
    """All node tests of the installed onnx, kept in a folder that the processes share."""
    kept = folder / "node_tests.pickle"
    with FileLock(folder / "node_tests.lock"):
        if kept.exists():
            found: tuple[TestCase, ...] = pickle.loads(kept.read_bytes())
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # onnx computes infinities on purpose
            found = tuple(collect_testcases(None))
        kept.write_bytes(pickle.dumps(found, protocol=5))
        return found


def shared(base: Path) -> Path:
    """What of a test run's temporary folder is for all of its processes."""
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
