"""Sessions over EPContext models, according to the spec's inference workflow."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from typing import Any, Final, Self, TypeVar

import onnxruntime as ort

from epctx.arguments import checked
from epctx.errors import UsageError
from epctx.inference.loading import Loaded, load
from epctx.inference.options import SessionConfig, SessionOptions, as_object
from epctx.inference.pipeline import ModelSource, Pipeline
from epctx.inference.selection import ProviderArgument, bind, pairs
from epctx.inference.values import NodeArg, Value, check_feeds, check_outputs, to_python, to_value
from epctx.manifest import DEFAULT_EP, OptionValue
from epctx.providers.base import ExecutionProvider
from epctx.providers.guard import guard

_UserData = TypeVar("_UserData")
_ON_CPU: Final = "all its inputs and outputs are on the CPU"
_NOT_TUNED: Final = "leave the call out: its EPs are not tuned"


def _of_one_session(name: str, remedy: str, doc: str = "") -> Callable[..., Any]:
    """Make a method that calls the method `name` of the onnxruntime session that runs the whole
    model. It has the signature of onnxruntime's method, and its docstring (else `doc`).
    """

    def call(self: Session, *args: Any, **kwargs: Any) -> Any:
        loaded = self._open()
        if loaded.pipeline.whole is None:
            raise UsageError(
                f"`{name}` is for models that one session of onnxruntime runs",
                why=f"{', '.join(loaded.providers[:-1])} and {DEFAULT_EP} run this one in steps",
                remedy=remedy,
            )
        return getattr(loaded.pipeline.whole, name)(*args, **kwargs)

    theirs = getattr(ort.InferenceSession, name, call)
    raises = f"Raises:\n    UsageError: the model does not run in one session; {remedy}."
    update_wrapper(call, theirs).__doc__ = f"{inspect.getdoc(theirs) or doc}\n\n{raises}"
    return call


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
        path_or_bytes: str | os.PathLike[str] | bytes,
        session_options: ort.SessionOptions | SessionOptions | None = None,
        providers: Sequence[ExecutionProvider] | None = None,
        *,
        dimensions: Mapping[str, int] | None = None,
    ) -> None:
        config = SessionConfig.read(session_options)
        source = ModelSource.of(path_or_bytes, config)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(thread_name_prefix="run_async")
        self._options = session_options
        self._given: Sequence[tuple[str, Mapping[str, OptionValue]]] = ()
        self._loaded: Loaded | None = None
        self._load: Callable[..., Loaded] | None = partial(
            load,
            source,
            config,
            session_options,
            providers=_guarded(providers),
            dimensions=dimensions,
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
        pipeline = self._open().pipeline
        return [to_python(v) for v in _run(pipeline, output_names, input_feed, run_options)]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, ort.OrtValue],
        run_options: ort.RunOptions | None = None,
    ) -> list[Value]:
        """Run the model with `onnxruntime.OrtValue`s as inputs and outputs; otherwise as `run`.

        If the model passes an input through, the output is the input's OrtValue.
        """
        return _run(self._open().pipeline, output_names, input_dict_ort_values, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        callback: Callable[[list[Value], _UserData, str], object],
        user_data: _UserData,
        run_options: ort.RunOptions | None = None,
    ) -> None:
        """Run the model in another thread, which then calls `callback`; otherwise as `run`.

        Args:
            callback: takes the results of `run`, `user_data`, and an empty text. If the run fails:
                an empty list, `user_data`, and the error's text.
            user_data: any object.

        Raises:
            UsageError: the session is closed. Other errors reach the callback.
        """
        pipeline, names = self._open().pipeline, output_names and [*output_names]
        run = partial(_run, pipeline, names, dict(input_feed), run_options)

        def task() -> None:
            try:
                results, error = [to_python(value) for value in run()], ""
            except Exception as raised:  # the callback has no other way to get it
                results, error = [], str(raised)
            try:
                callback(results, user_data, error)
            except Exception:  # nobody reads the future
                sys.excepthook(*sys.exc_info())

        self._threads.submit(task)

    def get_modelmeta(self) -> ort.ModelMetadata:
        """Return the metadata of the model that runs, which is the compiled model."""
        pipeline = self._open().pipeline
        session = pipeline.whole or ort.InferenceSession(pipeline.frame, providers=[DEFAULT_EP])
        return session.get_modelmeta()

    def get_session_options(self) -> ort.SessionOptions:
        """Return the options in use; those that the caller gave if the model does not run in one
        session of onnxruntime.
        """
        whole = self._open().pipeline.whole
        return as_object(self._options) if whole is None else whole.get_session_options()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each EP, by name: those in use in onnxruntime, else those that the
        caller gave. Of two EPs with the same name, it returns those of the first.
        """
        loaded = self._open()
        options: dict[str, dict[str, str]] = {name: {} for name in loaded.providers}
        for name, given in reversed(self._given):
            options[name] = {key: str(value) for key, value in given.items()}
        for session in reversed(loaded.pipeline.sessions()):
            options.update(session.get_provider_options())
        return options

    @checked
    def set_providers(
        self,
        providers: Sequence[ProviderArgument] | None = None,
        provider_options: Sequence[Mapping[str, OptionValue]] | None = None,
    ) -> None:
        """Load the model again, on these EPs. If that fails, the session stays as it is.

        A compiled model runs only on the EPs that it was compiled for.

        Args:
            providers: names, or pairs of name and options, in priority order; None for the EPs that
                the session has by default.
            provider_options: their options, in the same order.

        Raises:
            UsageError: the session is closed, its session options name EPs, or the arguments
                contradict each other. Also every error that creating the session can raise.
        """
        guarded = _guarded(bind(providers, provider_options))
        if as_object(self._options).has_providers():
            raise UsageError(
                "the EPs of this session cannot be replaced",
                why="its session options name them",
                remedy="create another session, without EPs in the session options",
            )
        with self._lock:
            reload = partial(self._loader(), providers=guarded)
            if self._loaded is not None:
                self._loaded = reload()
            self._load = reload
            self._given = pairs(providers, provider_options) or []

    def disable_fallback(self) -> None:
        """Leave the fallback to other EPs disabled, as it always is."""

    def enable_fallback(self) -> None:
        """Raise UsageError, since a session never runs a model on an EP that was not requested."""
        raise UsageError(
            "the fallback to other EPs cannot be enabled",
            why="a session of epctx runs a model on the requested EPs, or fails",
            remedy="catch the error of the run, and run the source model in another session",
        )

    create_ortvalue_from_shape_and_type = _of_one_session(
        "create_ortvalue_from_shape_and_type", f"use `onnxruntime.OrtValue`; {_ON_CPU}"
    )
    end_profiling = _of_one_session("end_profiling", "use `close()`: each step writes a file")
    get_input_epdevices = _of_one_session("get_input_epdevices", "use `get_providers()`")
    get_input_memory_infos = _of_one_session("get_input_memory_infos", _ON_CPU)
    get_output_memory_infos = _of_one_session("get_output_memory_infos", _ON_CPU)
    get_profiling_start_time_ns = _of_one_session(
        "get_profiling_start_time_ns", "read the file that each step writes"
    )
    get_provider_graph_assignment_info = _of_one_session(
        "get_provider_graph_assignment_info", "use `get_node_counts()`"
    )
    get_tuning_results = _of_one_session("get_tuning_results", _NOT_TUNED, "Return what was tuned.")
    io_binding = _of_one_session("io_binding", f"use `run_with_ort_values`: {_ON_CPU}")
    release_captured_graph = _of_one_session(
        "release_captured_graph", "leave the call out: no graph is captured"
    )
    run_with_iobinding = _of_one_session("run_with_iobinding", "use `run_with_ort_values`")
    run_with_ortvaluevector = _of_one_session(
        "run_with_ortvaluevector", "use `run_with_ort_values`"
    )
    set_ep_dynamic_options = _of_one_session(
        "set_ep_dynamic_options", "give options with `set_providers`"
    )
    set_tuning_results = _of_one_session("set_tuning_results", _NOT_TUNED, "Use what was tuned.")

    def close(self) -> None:
        """Release contexts and mapped files. Idempotent; a `run` in progress finishes normally."""
        with self._lock:
            self._loaded = self._load = None
        self._threads.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Loaded:
        """Return the loaded model; load it now if the session has not done so."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._loader()()
            return self._loaded

    def _loader(self) -> Callable[..., Loaded]:
        if self._load is None:
            raise UsageError("the session is closed", remedy="create another one")
        return self._load


def _guarded(providers: Sequence[ExecutionProvider] | None) -> list[ExecutionProvider] | None:
    return None if providers is None else [guard(each, each.name) for each in providers]


def _run(
    pipeline: Pipeline,
    output_names: Sequence[str] | None,
    input_feed: Mapping[str, object],
    run_options: ort.RunOptions | None,
) -> list[Value]:
    names = check_outputs(pipeline.outputs, output_names)
    feeds = {name: to_value(value) for name, value in input_feed.items()}
    check_feeds(pipeline.inputs, pipeline.overridable, feeds)
    return pipeline.run(names, feeds, run_options)
