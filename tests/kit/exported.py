"""An attention mask as the exporter of torch (2.13.0, `dynamo=True`) reads it; a build judged."""

from __future__ import annotations

from epctx.engine.report import GroupReport

MASKED = """
<ir_version: 10, opset_import: ["": 20]>
attention (float[batch,4,sequence,16] q, int64[batch,sequence] mask)
    => (float[batch,4,sequence,sequence] y)
<
    int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1},
    int64[3] after = {1, 2, 3}, int64[3] before = {0, 1, 2}, int64[1] last = {-1},
    float yes = {0.0}, float no = {-10000.0}
> {
    kept = Cast <to = 9> (mask)
    batches = Shape <start = 0, end = 1> (mask)
    places = Shape <start = 1, end = 2> (mask)
    rows = Squeeze (batches)
    columns = Squeeze (places)
    each_row = Range (zero, rows, one)
    each_column = Range (zero, columns, one)
    row = Unsqueeze (each_row, after)
    column = Unsqueeze (each_column, before)
    whole = Concat <axis = 0> (batches, second, places, places)
    row_of = Expand (row, whole)
    column_of = Expand (column, whole)
    r = Unsqueeze (row_of, last)
    c = Unsqueeze (column_of, last)
    indices = Concat <axis = -1> (r, c)
    seen = GatherND <batch_dims = 0> (kept, indices)
    k = Transpose <perm = [0, 1, 3, 2]> (q)
    scores = MatMul (q, k)
    bias = Where (seen, yes, no)
    masked = Add (scores, bias)
    y = Softmax (masked)
}
"""
ONES_AND_ZEROS = {"ranges": {"mask": [0, 1]}}
QNN: dict[str, object] = {"provider": "QNNExecutionProvider", "options": {"soc_model": "60"}}


def failed(group: GroupReport) -> list[str]:
    assert group.verify is not None
    return [each.message for each in group.verify.findings if each.outcome == "fail"]
