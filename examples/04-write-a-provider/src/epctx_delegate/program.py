"""The delegate's programs, and its context binary, which stores each weight once.

offset  size
0       8     b"DELEGAT1": the format and its version
8       32    SHA-256 of everything after it
40      8     n, the size of the header, little-endian
48      n     header: JSON, a list of `Program`
...           zeros up to a multiple of 64; then the weights, each at a multiple of 64 from here
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from epctx.errors import InvalidGraph

Array = npt.NDArray[np.floating]
MAGIC, VERSION, ALIGNMENT = b"DELEGAT1", "1", 64
OPERATORS: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Div": np.divide,
    "MatMul": np.matmul,
    "Mul": np.multiply,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}


class Weight(msgspec.Struct, frozen=True):
    """A stored weight. `offset`: in bytes from the start of the first weight."""

    offset: int
    dtype: Literal["float16", "float32"]
    shape: tuple[int, ...]
    sha256: str


class Program(msgspec.Struct, frozen=True):
    """A compiled partition. A step has an operator, the names of its inputs and of its output."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[tuple[str, tuple[str, ...], str], ...]
    weights: dict[str, Weight]

    @property
    def digest(self) -> str:
        """SHA-256 of the program; an EPContext node names its program by this."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class Weights:
    """The weights of all programs of a context. Equal weights are stored once."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._offsets: dict[str, int] = {}
        self._end = 0

    def add(self, array: Array) -> Weight:
        """Store a float16 or float32 array in C order."""
        content = hashlib.sha256(array.data).hexdigest()
        if content not in self._offsets:
            self._offsets[content] = self._end
            self.arrays.append(array)
            self._end += _aligned(array.nbytes)
        dtype: Literal["float16", "float32"] = "float16" if array.itemsize == 2 else "float32"
        return Weight(self._offsets[content], dtype, array.shape, content)


class Kernel:
    """A loaded program, with weights in the mapped binary: `epctx.providers.base.Kernel`."""

    def __init__(self, program: Program, stored: memoryview) -> None:
        if unknown := {operator for operator, _, _ in program.steps} - OPERATORS.keys():
            raise ValueError(f"the delegate has no operators {', '.join(sorted(unknown))}")
        self.program = program
        self._weights = {
            name: np.frombuffer(
                stored, weight.dtype, int(np.prod(weight.shape, dtype=int)), weight.offset
            ).reshape(weight.shape)
            for name, weight in program.weights.items()
        }

    def compute(self, inputs: Sequence[ort.OrtValue]) -> Sequence[ort.OrtValue]:
        """Run the program in float32. Stateless, since many threads call it."""
        values = {name: np.asarray(w, np.float32) for name, w in self._weights.items()}
        values |= {n: v.numpy() for n, v in zip(self.program.inputs, inputs, strict=True)}
        with np.errstate(all="ignore"):  # infinities are valid results
            for operator, reads, makes in self.program.steps:
                output = OPERATORS[operator](*(values[name] for name in reads))
                values[makes] = np.asarray(output, np.float32, order="C")
        return [ort.OrtValue.ortvalue_from_numpy(values[name]) for name in self.program.outputs]


def encode(programs: Sequence[Program], weights: Weights) -> Iterator[bytes | memoryview]:
    """Yield the context binary in pieces, so that it is never in memory as a whole."""
    header = msgspec.json.encode(programs, order="deterministic")

    def rest() -> Iterator[bytes | memoryview]:
        yield len(header).to_bytes(8, "little") + header
        yield bytes(_aligned(48 + len(header)) - 48 - len(header))
        for array in weights.arrays:
            yield array.reshape(-1).view(np.uint8).data
            yield bytes(_aligned(array.nbytes) - array.nbytes)

    checksum = hashlib.sha256()
    for piece in rest():
        checksum.update(piece)
    yield MAGIC + checksum.digest()
    yield from rest()


def decode(data: memoryview, *, where: str) -> list[Kernel]:
    """Return a kernel for each program of a context binary, without copying weights.

    Raises:
        InvalidGraph: the binary is damaged, or is not a delegate binary.
    """
    again = "copy it again from where it was built, or build it again"
    if data[:8] != MAGIC or data[8:40] != hashlib.sha256(data[40:]).digest():
        raise InvalidGraph("is not a delegate binary, or is damaged", where=where, remedy=again)
    size = int.from_bytes(data[40:48], "little")
    try:
        programs = msgspec.json.decode(data[48 : 48 + size], type=list[Program])
        return [Kernel(program, data[_aligned(48 + size) :]) for program in programs]
    except ValueError as error:  # invalid content with a valid checksum; msgspec's errors too
        raise InvalidGraph("is broken", where=where, why=str(error), remedy=again) from error


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
