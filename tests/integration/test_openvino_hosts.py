"""What OpenVINO's bytes depend on, on CPUs that QEMU emulates: no AVX-512, no AMX among them."""

from __future__ import annotations

import pytest

from scripts import openvino_hosts
from scripts.openvino_hosts import Circumstance

pytestmark = [
    pytest.mark.soak,
    pytest.mark.needs("module onnxruntime_ep_openvino", "it is what is compiled with"),
    pytest.mark.needs("program qemu-x86_64", "it emulates the CPUs"),
]


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    names = {
        "avx2": "Haswell",
        "avx2 of another model": "Broadwell",
        "avx2 of another family": "EPYC,vendor=GenuineIntel",
        "avx2 without fma": "Haswell,-fma",
        "avx": "SandyBridge",
        "sse4.2": "Nehalem",
    }
    rows = {name: openvino_hosts.digest(Circumstance(name, cpu)) for name, cpu in names.items()}
    return rows | {"two cores": openvino_hosts.digest(Circumstance("", "Haswell", cores=2))}


@pytest.mark.needs("two cores", "a row has them")
def test_the_instruction_set_and_the_cores_matter_and_neither_model_nor_family(
    found: dict[str, str],
) -> None:
    assert all(len(result) == 64 for result in found.values()), found
    assert openvino_hosts.alike(found) == [
        ["avx2", "avx2 of another model", "avx2 of another family", "avx2 without fma"],
        ["avx"],
        ["sse4.2"],
        ["two cores"],
    ]
