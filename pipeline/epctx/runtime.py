"""The public name of inference: sessions that compile their model first, where it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from epctx.commands.compile_model.command import compile_model
from epctx.inference.loading import release_shared_contexts
from epctx.inference.options import SessionConfig, SessionOptions
from epctx.inference.selection import ProviderArgument, bind
from epctx.inference.session import Session
from epctx.manifest import OptionValue

__all__ = ["InferenceSession", "release_shared_contexts"]


class InferenceSession(Session):
    """Runs a model; an API like onnxruntime's, for EPContext models of any installed EP.

    It is a `Session`, with its errors, whose EPs are named: `providers` are names, or pairs of name
    and options, in priority order; `provider_options` are their options, in the same order. With
    `ep.context_enable` among the session options the model is compiled by the providers first, as
    `compile_model` does, and what came out is run (in a group that shares: once the group's last
    session was created).
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        session_options: ort.SessionOptions | SessionOptions | None = None,
        providers: Sequence[ProviderArgument] | None = None,
        provider_options: Sequence[Mapping[str, OptionValue]] | None = None,
    ) -> None:
        if SessionConfig.read(session_options).enable:
            path_or_bytes = compile_model(
                path_or_bytes,
                session_options=session_options,
                providers=providers,
                provider_options=provider_options,
            )
        super().__init__(path_or_bytes, session_options, bind(providers, provider_options))

    def _loads_at_once(self, config: SessionConfig) -> bool:
        # The context binary of a group that shares is written by the group's last session.
        return not config.enable or config.stop_share or not config.share
