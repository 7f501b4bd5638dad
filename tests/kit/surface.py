"""Two sessions of one model, one of epctx and one of onnxruntime, compared method by method."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import numpy as np
import onnxruntime as ort

from tests.kit.building import Array


def methods(kind: type) -> dict[str, Any]:
    """The public members of a class, by name."""
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def parameters(method: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """Name, kind and default of each parameter."""
    given = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in given]


def fields(thing: Any) -> dict[str, Any]:
    """The data of an object of onnxruntime's, which compares by identity."""
    values = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}
    return {name: value for name, value in values.items() if not callable(value)}


def compare(own: Any, theirs: ort.InferenceSession, feeds: Mapping[str, Array]) -> set[str]:
    """Compare all results of a session that onnxruntime runs whole; return the methods' names."""
    results: dict[str, tuple[Any, Any]] = {}

    def same(name: str, call: Callable[[Any], Any], *alike: str) -> None:
        results.update(dict.fromkeys((name, *alike), (call(own), call(theirs))))

    same("get_modelmeta", lambda s: fields(s.get_modelmeta()))
    for name in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        same(name, each_of(name, lambda arg: (arg.name, arg.type, arg.shape)))
    for name in ("get_input_memory_infos", "get_output_memory_infos"):
        same(name, each_of(name, fields))
    same("get_input_epdevices", each_of("get_input_epdevices", lambda device: device.ep_name))
    for name in (
        "get_providers",
        "get_provider_options",
        "get_tuning_results",
        "get_profiling_start_time_ns",
        "end_profiling",
        "disable_fallback",
    ):
        same(name, methodcaller(name))
    same("set_tuning_results", lambda s: s.set_tuning_results([], error_on_invalid=True))
    same("release_captured_graph", lambda s: s.release_captured_graph(graph_annotation_id=0))
    dynamic = {"ep.dynamic.workload_type": "Default"}
    same("set_ep_dynamic_options", lambda s: s.set_ep_dynamic_options(options=dynamic))
    same("get_session_options", lambda s: s.get_session_options().graph_optimization_level)
    name = "get_provider_graph_assignment_info"
    same(name, each_of(name, lambda p: (p.ep_name, [n.name for n in p.get_nodes()])))
    for name, run in (
        ("run", lambda s: s.run(output_names=None, input_feed=feeds)),
        ("run_with_ort_values", by_ort_values(feeds)),
        ("run_with_ortvaluevector", by_vector(feeds)),
        ("run_async", lambda s: by_callback(s, feeds)[0]),
    ):
        same(name, run)
    same(
        "run_with_iobinding", by_binding(feeds), "io_binding", "create_ortvalue_from_shape_and_type"
    )
    for name, (one, other) in results.items():
        np.testing.assert_equal(one, other, err_msg=name)
    return {*results}


def each_of(name: str, describe: Callable[[Any], object]) -> Callable[[Any], list[object]]:
    """Call a method that returns a list, and describe what is in it."""
    return lambda session: [describe(each) for each in getattr(session, name)()]


def by_ort_values(feeds: Mapping[str, Array]) -> Callable[[Any], list[Array]]:
    """A run from OrtValues to OrtValues."""
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    return lambda s: [v.numpy() for v in s.run_with_ort_values(None, values)]


def by_vector(feeds: Mapping[str, Array]) -> Callable[[Any], list[Array]]:
    """A run from a vector of OrtValues to a vector."""

    def run(session: Any) -> list[Array]:
        state = ort.capi.onnxruntime_pybind11_state
        given, made = state.OrtValueVector(), state.OrtValueVector()
        for array in feeds.values():
            given.push_back(ort.OrtValue.ortvalue_from_numpy(array)._get_c_value())
        names = [arg.name for arg in session.get_outputs()]
        device = state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)
        session.run_with_ortvaluevector(
            ort.RunOptions(), [*feeds], given, names, made, [device] * len(names)
        )
        return [ort.OrtValue(value).numpy() for value in made]

    return run


def by_binding(feeds: Mapping[str, Array]) -> Callable[[Any], list[Array]]:
    """A run with an IOBinding, whose first output is a value that the session allocates."""

    def run(session: Any) -> list[Array]:
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        first, *others = session.get_outputs()
        value = session.create_ortvalue_from_shape_and_type(first.shape, np.float32, "cpu")
        binding.bind_ortvalue_output(first.name, value)
        for arg in others:
            binding.bind_output(arg.name)
        session.run_with_iobinding(binding, run_options=None)
        return [value.numpy(), *binding.copy_outputs_to_cpu()]

    return run


def by_callback(
    session: Any, feeds: Mapping[str, object], names: Sequence[str] | None = None
) -> tuple[list[Array], str]:
    """A run in another thread: the results and the error's text."""
    answers: list[tuple[list[Array], object, str]] = []
    done = threading.Event()

    def callback(results: list[Array], user_data: object, error: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        answers.append((results, user_data, error))
        done.set()

    mine = object()
    session.run_async(names, feeds, callback, user_data=mine)
    assert done.wait(60)
    ((results, user_data, error),) = answers
    assert user_data is mine
    return list(results), error
