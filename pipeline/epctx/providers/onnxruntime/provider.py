"""Provider class of ONNX Runtime's EPs: the nodes offered to them, and their compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx.providers.base import Capability, SessionGroupSpec
from epctx.providers.onnxruntime.ep import OrtEp

if TYPE_CHECKING:
    import onnx_ir as ir

    from epctx.providers.onnxruntime.workspace import OrtWorkspace


class OrtProvider(OrtEp):
    """Provider for an EP that ONNX Runtime runs; ONNX Runtime also partitions and compiles
    for it.
    """

    def get_capability(self, model: ir.Model) -> Capability:
        """Return all nodes except those that the EP cannot take.

        Raises:
            ModelError: inputs have no static shape, so the EP would compile nothing.
        """
        from epctx.providers.onnxruntime.capability import (
            capability,
            require_static_shapes,
            takes_whole,
        )

        if self.static_shapes:
            require_static_shapes(model, provider=self.name)
        return capability(model, lambda node: takes_whole(model, node, self), self.packaged())

    def packaged(self) -> frozenset[str]:
        """Return the types of custom operators that the EP gets from libraries of its own."""
        return frozenset()

    def open_workspace(self, session_group: SessionGroupSpec) -> OrtWorkspace:
        """Open the generating sessions of one session group.

        Raises:
            ManifestError: the prefix cannot be applied.
            ProviderUnavailable: this host cannot compile for the EP.
        """
        from epctx.providers.onnxruntime.workspace import OrtWorkspace

        return OrtWorkspace(self, session_group)
