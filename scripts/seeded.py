"""Seeded random weights with the same bytes on every machine.

A counter-based generator keyed by seed and name makes 16-bit integers; one multiplication and one
addition in float32 scale them. Nothing depends on the order in which weights are made, on the
number of threads, or on a math library.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

LIMIT = 32767
"""Largest magnitude of the integers that `integers` makes."""


def integers(name: str, seed: int, shape: Sequence[int]) -> npt.NDArray[np.int16]:
    """Uniform integers from -LIMIT to LIMIT, a function of name, seed and shape."""
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16]
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    return generator.integers(-LIMIT, LIMIT, size=tuple(shape), dtype=np.int16, endpoint=True)


def scale(deviation: float) -> np.float32:
    """What `integers` are multiplied with for a standard deviation of `deviation`."""
    return np.float32(deviation * math.sqrt(3.0) / LIMIT)


def around(name: str, seed: int, shape: Sequence[int], centre: float, spread: float) -> Floats:
    """Uniform numbers from centre - spread to centre + spread."""
    numbers = integers(name, seed, shape).astype(np.float32)
    numbers *= np.float32(spread / LIMIT)
    numbers += np.float32(centre)
    return numbers
