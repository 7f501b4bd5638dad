"""What other hosts said of their EPs, read from a lock. Reports: tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx import lockfile
from epctx.cache.digests import FreshDigests
from epctx.engine import from_cache
from epctx.errors import UsageError
from epctx.lockfile.types import LockedHost

MANIFESTS = Path(__file__).parents[3] / "manifests"


def test_a_lock_says_each_ep_with_its_options_and_host() -> None:
    path = MANIFESTS / "openvino.lock.yaml"
    (ep,) = from_cache.of_lock(lockfile.read(path), path, FreshDigests()).eps.values()
    assert ep.record.provider == "OpenVINOExecutionProvider"
    assert ep.record.host["cpu vendor"] == "GenuineIntel"
    assert ep.record.toolchain["onnxruntime-ep-openvino"] == "1.8.1"


def test_a_lock_says_what_a_session_is_given() -> None:
    path = MANIFESTS / "qnn.lock.yaml"
    found = from_cache.of_lock(lockfile.read(path), path, FreshDigests()).eps.values()
    assert {(ep.traits.name, ep.traits.device) for ep in found} == {("QNNExecutionProvider", "npu")}
    assert all(ep.traits.native and ep.traits.isolated and ep.traits.sources for ep in found)


def test_a_lock_of_several_kinds_of_host_does_not_say_which() -> None:
    path = MANIFESTS / "openvino.lock.yaml"
    lock = lockfile.read(path)
    kind = {name: ep.host for name, ep in lock.execution_providers.items()}
    host = LockedHost(compositions={}, execution_providers=kind, golden={}, groups={})
    with pytest.raises(UsageError, match="kinds of host"):
        from_cache.of_lock(replace(lock, hosts={"host-1": host}), path, FreshDigests())
