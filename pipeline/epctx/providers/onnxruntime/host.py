"""Facts about the host that an EP's output depends on."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

if sys.platform == "win32":
    import winreg

    import psutil


class Cpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identity of the CPU, without the number of cores.

    Attributes:
        vendor: GenuineIntel, AuthenticAMD, ARM's implementer number or similar.
        family: the vendor's number of the family; "" if there is none.
        model: the vendor's number of the model; on ARM the part number.
        flags: instruction set extensions, sorted; empty if the system does not tell.
    """

    vendor: str
    family: str
    model: str
    flags: tuple[str, ...]


@functools.cache
def cpu() -> Cpu:
    """Return the CPU of this host."""
    if sys.platform == "win32":
        return _windows_cpu()
    return _linux_cpu()


def _linux_cpu() -> Cpu:
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n\n", 1)[0].splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags") or fields.get("Features") or ""
    return Cpu(
        vendor=fields.get("vendor_id") or fields.get("CPU implementer") or platform.processor(),
        family=fields.get("cpu family") or fields.get("CPU architecture") or "",
        model=fields.get("model") or fields.get("CPU part") or "",
        flags=tuple(sorted(flags.split())),
    )


if sys.platform == "win32":

    def _windows_cpu() -> Cpu:

        key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as handle:
            vendor = str(winreg.QueryValueEx(handle, "VendorIdentifier")[0])
            # "Intel64 Family 6 Model 143 Stepping 8"
            words = str(winreg.QueryValueEx(handle, "Identifier")[0]).split()
        numbers = dict(itertools.pairwise(words))
        # winnt.h, PF_*: the features that IsProcessorFeaturePresent knows.
        features = {
            10: "sse2", 13: "sse3", 36: "ssse3", 37: "sse4_1", 38: "sse4_2", 39: "avx", 40: "avx2",
            41: "avx512f", 30: "crypto", 31: "crc32", 34: "atomics", 43: "asimddp",
        }  # fmt: skip
        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        return Cpu(
            vendor=vendor,
            family=numbers.get("Family", ""),
            model=numbers.get("Model", ""),
            flags=tuple(sorted(name for number, name in features.items() if present(number))),
        )


PLACE: Final = "EPCTX_WORKER_PLACE"
"""Environment variable with a worker's place among the build's workers, from 0. It does not affect
the bytes."""


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and the threads it starts meanwhile, on one core for the duration of the
    body.

    The choice of the core does not matter (measured on OpenVINO: core 0 and core 1 gave the same
    bytes, one core and two cores did not; real-eps.md section 1). A worker chooses the core by its
    place among the build's workers (`PLACE`), so workers use different cores while there are
    enough. Another process chooses by its process id. On a system without affinities (macOS)
    nothing happens.
    """
    allowed = cores()
    if not allowed:
        yield
        return
    place = int(os.environ.get(PLACE) or os.getpid())
    keep_on({sorted(allowed)[place % len(allowed)]})
    try:
        yield
    finally:
        keep_on(allowed)


def cores() -> set[int]:
    """Return the cores that this process may run on; empty on a system without affinities
    (macOS).
    """
    if sys.platform == "win32":
        return set(psutil.Process().cpu_affinity())
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set()


def keep_on(chosen: set[int]) -> None:
    """Restrict this process, all its threads and all later child processes to these cores."""
    if sys.platform == "win32":
        psutil.Process().cpu_affinity(sorted(chosen))
    elif sys.platform == "linux":
        # All existing threads: an earlier thread of a pool may be the one that compiles.
        threads = (int(entry.name) for entry in Path("/proc/self/task").iterdir())
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, chosen)
