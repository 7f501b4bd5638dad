"""The nodes of one EP of onnxruntime in a session of its own, run one by one.

So nodes of several EPs can take turns in a model that onnxruntime does not run in one session: on
the x86 simulator, QNN fails to run beside OpenVINO (measured). All nodes of an EP are
in one session, since nodes of `main_context` 0 find their graphs in the context of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnxruntime as ort
from msgspec import Struct

from epctx.runtime.split import SegmentBuilder, segment
from epctx.runtime.values import Value, to_python, to_value


class ApartRunner(Struct, frozen=True, kw_only=True):
    """One EPContext node of a session that holds all of its EP.

    Attributes:
        session: of the EP's nodes and nothing else.
        reads: what the node needs, and those before it in the session that it depends on: they run
            once more, since onnxruntime takes no value that it makes itself.
        makes: the node's outputs.
        idle: a value of any content for each input of the session: onnxruntime wants all of them,
            and reads those of the nodes that run.
    """

    session: ort.InferenceSession
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    idle: Mapping[str, ort.OrtValue]

    def run(
        self, values: Mapping[str, Value], run_options: ort.RunOptions | None
    ) -> Sequence[Value]:
        """Its outputs; of the session's other nodes only those run that it depends on."""
        options = ort.RunOptions()  # the caller's are not to be changed
        options.only_execute_path_to_fetches = True
        feeds = {**self.idle, **{name: values[name] for name in self.reads if name in values}}
        made = self.session.run_with_ort_values(self.makes, feeds, options)
        return [to_value(to_python(value)) for value in made]  # out of the EP's own memory


def build(model: onnx.ModelProto, places: Sequence[int]) -> onnx.ModelProto:
    """A model of the nodes at these places of the main graph, with all of their outputs.

    Args:
        places: in topological order.
    """
    return SegmentBuilder(model).build(segment(model.graph, places))


def runners(part: onnx.ModelProto, session: ort.InferenceSession) -> Iterator[ApartRunner]:
    """For each node of `part`, which `build` has made, its runner.

    Args:
        session: of `part`.
    """
    idle = {value.name: _idle(value) for value in part.graph.input}
    needs: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in idle}
    for node in part.graph.node:
        known = (needs[name] for name in node.input if name in needs)
        own: frozenset[str] = frozenset().union(*known)
        needs.update(dict.fromkeys(node.output, own))
        makes = tuple(name for name in node.output if name)
        yield ApartRunner(session=session, reads=tuple(sorted(own)), makes=makes, idle=idle)


def _idle(value: onnx.ValueInfoProto) -> ort.OrtValue:
    tensor = value.type.tensor_type
    shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, tensor.elem_type)
