"""Sessions over EPContext models, according to the spec's inference workflow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import onnxruntime as ort

from epctx.errors import UsageError
from epctx.inference.loading import Loaded, load
from epctx.inference.options import SessionConfig, SessionOptions
from epctx.inference.pipeline import ModelSource
from epctx.inference.values import NodeArg, Value, check_feeds, check_outputs, to_python, to_value
from epctx.providers.base import ExecutionProvider
from epctx.providers.guard import guard


class Session:
    """Runs a model; an API like onnxruntime's, for EPContext models of any installed EP.

    onnxruntime runs a model without EPContext nodes, on its EPs that the caller names, else on the
    CPU EP. In a model with EPContext nodes, each EP gets the nodes whose `source` it accepts and
    loads their contexts; onnxruntime runs the other nodes, and the nodes of its own EPs (QNN,
    OpenVINO, ...). If the caller names EPs, at least one of them runs a part of the model. `run`
    may be called from many threads.

    Args:
        path_or_bytes: the model.
        session_options: an `onnxruntime.SessionOptions`, or session config entries as a mapping.
            Those of the spec's table are honoured: `ep.share_ep_contexts`, `ep.context_file_path`
            (needed to find context binaries of a model from bytes),
            `session.model_external_initializers_file_folder_path`.
        providers: EPs in priority order, bound to their options. Default: every installed EP that
            accepts a `source` of the model, with its default options.
        dimensions: sizes of symbolic dimensions of a model without EPContext nodes.

    Raises:
        ModelError: the file does not exist, or is not an ONNX model.
        InvalidGraph: a context cannot be loaded, for any reason, or no EP takes a node.
        ProviderUnavailable: a requested EP is not installed, or has no device here.
        UsageError: options or arguments do not exist, or contradict each other.
        ManifestError: an EP does not have an option, or does not accept its value.
        CompileError: the named EPs take no node of an uncompiled model, or fail on it.
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        session_options: ort.SessionOptions | SessionOptions | None = None,
        providers: Sequence[ExecutionProvider] | None = None,
        *,
        dimensions: Mapping[str, int] | None = None,
    ) -> None:
        config = SessionConfig.read(session_options)
        source = ModelSource.of(path_or_bytes, config)
        guarded = None if providers is None else [guard(p, p.name) for p in providers]
        self._lock = threading.Lock()
        self._loaded: Loaded | None = None
        self._load: Callable[[], Loaded] | None = partial(
            load, source, config, session_options, guarded, dimensions
        )
        if self._loads_at_once(config):
            self._open()

    def _loads_at_once(self, config: SessionConfig) -> bool:
        """Tell whether the session loads its model at once, instead of on first use."""
        return True

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs, without those that have an initializer."""
        pipeline = self._open().pipeline
        return [arg for arg in pipeline.inputs if arg.name not in pipeline.overridable]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the model's inputs that may be left out: they have an initializer."""
        pipeline = self._open().pipeline
        return [arg for arg in pipeline.inputs if arg.name in pipeline.overridable]

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs."""
        return list(self._open().pipeline.outputs)

    def get_providers(self) -> list[str]:
        """Return the EPs that run the model, the default EP last."""
        return list(self._open().providers)

    def get_node_counts(self) -> dict[str, int]:
        """Return the number of nodes that each EP runs, by name. The CPU's nodes are counted after
        onnxruntime's optimizations.

        Nodes that onnxruntime runs are counted only if `session.record_ep_graph_assignment_info` is
        "1".
        """
        return dict(self._open().nodes)

    def get_reason_apart(self) -> str | None:
        """Return why EPs of onnxruntime have sessions of their own here; None if they share one."""
        return self._open().apart

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: ort.RunOptions | None = None,
    ) -> list[Value]:
        """Run the model. Thread-safe.

        Args:
            output_names: the outputs wanted, in this order; None for all.
            input_feed: by input name: numpy arrays, `onnxruntime.OrtValue`s, lists of arrays for
                sequences.
            run_options: as in onnxruntime, for the parts that onnxruntime runs.

        Returns:
            numpy arrays (bfloat16 and float8 as ml_dtypes has them), lists for sequences.

        Raises:
            UsageError: feeds or names do not match the model, or the session is closed. Errors of
                onnxruntime during the run are passed on unchanged.
        """
        return [to_python(v) for v in self._run(output_names, input_feed, run_options)]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, ort.OrtValue],
        run_options: ort.RunOptions | None = None,
    ) -> list[Value]:
        """Run the model with `onnxruntime.OrtValue`s as inputs and outputs; otherwise as `run`.

        If the model passes an input through, the output is the input's OrtValue.
        """
        return self._run(output_names, input_dict_ort_values, run_options)

    def close(self) -> None:
        """Release contexts and mapped files. Idempotent; a `run` in progress finishes normally."""
        with self._lock:
            self._loaded = self._load = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Loaded:
        """Return the loaded model; load it now if the session has not done so."""
        with self._lock:
            if self._loaded is None and self._load is not None:
                self._loaded = self._load()
            if self._loaded is None:
                raise UsageError("the session is closed", remedy="create another one")
            return self._loaded

    def _run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: ort.RunOptions | None,
    ) -> list[Value]:
        pipeline = self._open().pipeline
        names = check_outputs(pipeline.outputs, output_names)
        feeds = {name: to_value(value) for name, value in input_feed.items()}
        check_feeds(pipeline.inputs, pipeline.overridable, feeds)
        return pipeline.run(names, feeds, run_options)
