"""Public module for inference: sessions that can compile their model first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import onnxruntime as ort

from epctx.arguments import checked
from epctx.commands.compile_model.command import compile_model
from epctx.commands.options import AnyPath, Existing
from epctx.errors import UsageError
from epctx.inference.loading import release_shared_contexts
from epctx.inference.options import SessionConfig, SessionOptions
from epctx.inference.selection import ProviderArgument, bind, pairs
from epctx.inference.session import Session
from epctx.manifest import OptionValue

__all__ = ["InferenceSession", "release_shared_contexts"]


class InferenceSession(Session):
    """Runs a model; has every method of `onnxruntime.InferenceSession`, for EPContext models of any
    installed EP.

    A `Session`, with the same errors, whose EPs are given by name. `providers` are names, or pairs
    of name and options, in priority order; `provider_options` are their options, in the same order.
    `sess_options` is onnxruntime's name for `session_options`. Methods that need one session of
    onnxruntime raise UsageError if the model runs in steps, as with the reference EP.
    With `ep.context_enable` in the session options, the providers first compile the model, as
    `compile_model` does, and the session runs the compiled model. In a group that shares, it runs
    only after the group's last session was created.
    """

    @checked
    def __init__(
        self,
        path_or_bytes: Annotated[AnyPath | bytes, Existing()],
        session_options: ort.SessionOptions | SessionOptions | None = None,
        providers: Sequence[ProviderArgument] | None = None,
        provider_options: Sequence[Mapping[str, OptionValue]] | None = None,
        *,
        sess_options: ort.SessionOptions | None = None,
    ) -> None:
        if sess_options is not None:
            if session_options is not None:
                raise UsageError(
                    "session_options and sess_options are both given",
                    remedy="give one: they mean the same",
                )
            session_options = sess_options
        if SessionConfig.read(session_options).enable:
            path_or_bytes = compile_model(
                path_or_bytes,
                session_options=session_options,
                providers=providers,
                provider_options=provider_options,
            )
        super().__init__(path_or_bytes, session_options, bind(providers, provider_options))
        self._given = pairs(providers, provider_options) or ()

    def _loads_at_once(self, config: SessionConfig) -> bool:
        # The last session of a sharing group writes the context binary.
        return not config.enable or config.stop_share or not config.share
