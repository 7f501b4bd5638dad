"""Provider class of the EPs of ONNX Runtime: which nodes they are given, and how they compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx.providers.base import Capability, SessionGroupSpec
from epctx.providers.onnxruntime.ep import OrtEp

if TYPE_CHECKING:
    import onnx_ir as ir

    from epctx.providers.onnxruntime.workspace import OrtWorkspace


class OrtProvider(OrtEp):
    """An EP that ONNX Runtime runs, as a provider: ONNX Runtime partitions and compiles for it."""

    def get_capability(self, model: ir.Model) -> Capability:
        """Return all nodes but those that the EP cannot take.

        Raises:
            ModelError: inputs have no static shape, and it compiles nothing then.
        """
        from epctx.providers.onnxruntime.capability import (
            capability,
            require_static_shapes,
            takes_whole,
        )

        if self.static_shapes:
            require_static_shapes(model, provider=self.name)
        return capability(model, lambda node: takes_whole(model, node, self))

    def open_workspace(self, session_group: SessionGroupSpec) -> OrtWorkspace:
        """Open the generating sessions of one session group.

        Raises:
            ManifestError: the prefix cannot be carried out.
            ProviderUnavailable: this host cannot compile for it.
        """
        from epctx.providers.onnxruntime.workspace import OrtWorkspace

        return OrtWorkspace(self, session_group)
