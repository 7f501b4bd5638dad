"""The `com.microsoft::EPContext` operator: its attributes as a type, written and read.

Source: spec/ep-context-design.md, "EPContext Op Schema". The op's default of `embed_mode` is 1 and
the session option's is 0, so `embed_mode` and `main_context` are always written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

DOMAIN = "com.microsoft"
OP_TYPE = "EPContext"
