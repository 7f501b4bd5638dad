"""All limits of epctx: sizes, counts, depths, times.

Limits bound the memory and time that a foreign file can cost. The environment variable
`EPCTX_LIMIT_<NAME>`, a whole number, sets a limit for one run; `epctx env` lists the limits. A
limit decides only whether something is refused. It does not change the built bytes, so no cache key
contains a limit. Limits of native work also decide how much is inferred for a model on which
inference does not end, and the report says so. The maximum of a format or a system is not a limit;
it is defined where the format is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.text import did_you_mean

PREFIX: Final = "EPCTX_LIMIT_"
_UNITS: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


@dataclass(frozen=True)
class Limit:
    """One limit.

    Attributes:
        name: end of the variable's name, `EPCTX_LIMIT_<NAME>`.
        default: value if the variable is not set.
        unit: `bytes`, `s`, or the noun of the counted things.
        of: noun for the thing that is limited.
    """

    name: str
    default: int
    unit: str
    of: str

    @property
    def variable(self) -> str:
        """Environment variable that sets the limit."""
        return PREFIX + self.name

    @property
    def value(self) -> int:
        """Current value.

        Raises:
            UsageError: the variable is not a whole number of 1 or more.
        """
        text = os.environ.get(self.variable)
        return self.default if text is None else self._parse(text)

    @property
    def remedy(self) -> str:
        """Remedy for a trusted file that exceeds the limit."""
        return f"if the file is what it should be, raise {self.variable}, which is {self.value}"

    def __str__(self) -> str:
        return amount(self.value, self.unit)

    def _parse(self, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) > 0):
            raise UsageError(
                f"{self.variable} is {text!r}",
                remedy=f"set it to a whole number of {self.unit}, 1 or more, or unset it",
                code=Code.ENVIRONMENT,
            )
        return int(text)


def amount(count: int, unit: str) -> str:
    """Format a count with its unit for people: `4 MiB`, `100,000 values`, `60 s`."""
    if unit == "bytes":
        for name, size in _UNITS.items():
            if count >= size and count % size == 0:
                return f"{count // size} {name}"
    return f"{count:,} {unit}"


MANIFEST_BYTES: Final = Limit("MANIFEST_BYTES", 4 << 20, "bytes", "a manifest")
MANIFEST_DEPTH: Final = Limit(
    "MANIFEST_DEPTH", 64, "levels", "nesting in a manifest, with aliases expanded"
)
MANIFEST_VALUES: Final = Limit(
    "MANIFEST_VALUES",
    100_000,
    "values",
    "values in a manifest, with aliases expanded; values of groups and compositions count once for"
    " each target",
)
LOCK_BYTES: Final = Limit("LOCK_BYTES", 64 << 20, "bytes", "a lock file")
LOCK_DEPTH: Final = Limit(
    "LOCK_DEPTH", 16, "levels", "nesting in a lock file, which has no aliases"
)
SUMS_BYTES: Final = Limit("SUMS_BYTES", 16 << 20, "bytes", "a `SHA256SUMS`")
SIGNATURE_BYTES: Final = Limit("SIGNATURE_BYTES", 64 << 20, "bytes", "a signature (`model.sig`)")
REPORT_BYTES: Final = Limit("REPORT_BYTES", 512 << 20, "bytes", "a build report (`.build.json`)")
FILE_BYTES: Final = Limit(
    "FILE_BYTES",
    256 << 30,
    "bytes",
    "a model, a file of weights or an output; each is read completely for its digest, and a sparse"
    " file can have any size",
)
MODEL_FIELDS: Final = Limit(
    "MODEL_FIELDS", 5_000_000, "fields", "fields in a model's graphs, nodes and tensors"
)
MODEL_STRUCTURE_BYTES: Final = Limit(
    "MODEL_STRUCTURE_BYTES",
    256 << 20,
    "bytes",
    "a model's small nodes, types and metadata, which take up to 30 times as much memory",
)
MODEL_NODES: Final = Limit(
    "MODEL_NODES", 1_000_000, "nodes", "nodes of a model, with its local functions inlined"
)
NODE_INPUTS: Final = Limit(
    "NODE_INPUTS",
    20_000,
    "inputs",
    "inputs of one node; each replaced input copies all of them",
)
FUNCTION_DEPTH: Final = Limit("FUNCTION_DEPTH", 200, "functions", "nested calls of local functions")
DENSE_BYTES: Final = Limit(
    "DENSE_BYTES", 1 << 30, "bytes", "the dense form of all sparse tensors of a model"
)
INPUT_BYTES: Final = Limit(
    "INPUT_BYTES", 2 << 30, "bytes", "a generated input set, to compare numbers or to run a model"
)
SIZE_RUNS: Final = Limit(
    "SIZE_RUNS", 1000, "runs", "the search for sizes at which a model with open dimensions runs"
)
SIZE_SECONDS: Final = Limit("SIZE_SECONDS", 20, "s", "the search for sizes of open dimensions")
DOCUMENT_BYTES: Final = Limit(
    "DOCUMENT_BYTES", 64 << 20, "bytes", "the table of an OpenVINO binary"
)
DOCUMENT_DEPTH: Final = Limit(
    "DOCUMENT_DEPTH", 16, "levels", "nesting in the table of an OpenVINO binary"
)
RECORD_BYTES: Final = Limit(
    "RECORD_BYTES", 256 << 20, "bytes", "a record of the cache, golden.json, results of a device"
)
REMOTE_RECORD_BYTES: Final = Limit(
    "REMOTE_RECORD_BYTES", 64 << 20, "bytes", "a record of a shared cache"
)
REMOTE_FILES: Final = Limit(
    "REMOTE_FILES", 10_000, "files", "files of one record of a shared cache"
)
REMOTE_ANSWER_SECONDS: Final = Limit(
    "REMOTE_ANSWER_SECONDS",
    120,
    "s",
    "all attempts to get one answer of a shared cache, plus a second for each 256 KiB of a file",
)
PUSH_SECONDS: Final = Limit(
    "PUSH_SECONDS", 600, "s", "the wait at the end of a build for pushes to a shared cache"
)
SIGNING_SECONDS: Final = Limit(
    "SIGNING_SECONDS",
    60,
    "s",
    "the command that prints a signing key, or docker's credential helper",
)
TENSOR_RANK: Final = 64
"""Maximum number of dimensions of a tensor, which is numpy's limit."""
LOG_BYTES: Final = Limit(
    "LOG_BYTES",
    16 << 20,
    "bytes",
    "the part that is read of the log of onnxruntime and an SDK in one call",
)
UNPACKED_BYTES: Final = Limit(
    "UNPACKED_BYTES",
    4 << 30,
    "bytes",
    "a .npy or .pb file of inputs, a golden file, and the arrays that one .npz file unpacks to",
)
WORKER_MEMORY: Final = Limit(
    "WORKER_MEMORY",
    1 << 40,
    "bytes",
    "memory of a worker process and its child processes, without mapped files; if all of them use"
    " more than nine tenths of the computer's or container's memory, epctx ends the largest one",
)
NATIVE_MEMORY: Final = Limit(
    "NATIVE_MEMORY",
    2 << 30,
    "bytes",
    "memory of a worker process, without mapped files, while onnx or ONNX Runtime checks a model or"
    " infers its shapes, plus 256 bytes for each byte of the model without its weights",
)
NATIVE_SECONDS: Final = Limit(
    "NATIVE_SECONDS",
    60,
    "s",
    "processor time of onnx or ONNX Runtime for this work, plus a second for each 64 KiB of the"
    " model without its weights; the work may take eight times as long",
)
WORKER_LOG: Final = Limit(
    "WORKER_LOG",
    64 << 20,
    "bytes",
    "a worker process's log; the middle of a longer log is left out",
)
WORKER_ANSWER: Final = Limit("WORKER_ANSWER", 1 << 30, "bytes", "one answer of a worker process")
MACHINE_JOB: Final = Limit(
    "MACHINE_JOB", 64 << 20, "bytes", "a job for another machine, or its answer, without files"
)
MACHINE_FILES: Final = Limit(
    "MACHINE_FILES", 100_000, "files", "files that a job for another machine reads or writes"
)
PROBE_SECONDS: Final = Limit("PROBE_SECONDS", 60, "s", "the check of an EP by `epctx doctor`")
READ_BINARY_SECONDS: Final = Limit(
    "READ_BINARY_SECONDS",
    120,
    "s",
    "reading a QNN binary with the SDK's library, in a separate process",
)

REMOTE_CONNECT_SECONDS: Final = Limit(
    "REMOTE_CONNECT_SECONDS", 5, "s", "the wait for a connection to a shared cache or a registry"
)
REMOTE_STALL_SECONDS: Final = Limit(
    "REMOTE_STALL_SECONDS", 20, "s", "the wait for the next byte from a shared cache or a registry"
)
REMOTE_SECONDS: Final = Limit(
    "REMOTE_SECONDS",
    60,
    "s",
    "one attempt to transfer a blob of a shared cache or a registry, plus a second for each 16 KiB"
    " of the blob",
)
REMOTE_ATTEMPTS: Final = Limit(
    "REMOTE_ATTEMPTS",
    4,
    "attempts",
    "attempts to transfer a blob of a shared cache or a registry; an attempt that transfers a"
    " mebibyte is not counted",
)
REMOTE_WAIT_SECONDS: Final = Limit(
    "REMOTE_WAIT_SECONDS",
    30,
    "s",
    "the wait between two attempts that a shared cache or a registry may ask for",
)
REMOTE_NAMES: Final = Limit(
    "REMOTE_NAMES", 1_000_000, "names", "the blobs in one listing of a shared cache"
)
REGISTRY_MANIFEST_BYTES: Final = Limit(
    "REGISTRY_MANIFEST_BYTES",
    4 << 20,
    "bytes",
    "a manifest of a registry, a list of its referrers, a token, or docker's configuration",
)
REGISTRY_FILES: Final = Limit("REGISTRY_FILES", 10_000, "files", "files of one artifact")
REGISTRY_REFERRERS: Final = Limit(
    "REGISTRY_REFERRERS", 100, "artifacts", "artifacts that refer to one artifact"
)
REGISTRY_ATTACHED_BYTES: Final = Limit(
    "REGISTRY_ATTACHED_BYTES", 64 << 20, "bytes", "a signature or an attestation of an artifact"
)

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Limit))


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Check that every variable `EPCTX_LIMIT_…` names a limit and has a valid value.

    Raises:
        UsageError: a variable names no limit, or its value is invalid.
    """
    limits_by_variable = {limit.variable: limit for limit in ALL}
    for name in environment:
        if name.startswith(PREFIX):
            if name not in limits_by_variable:
                raise UsageError(
                    f"{name} is not a limit of epctx",
                    remedy=did_you_mean(name, sorted(limits_by_variable)),
                    code=Code.ENVIRONMENT,
                )
            _ = limits_by_variable[name].value
