"""What `epctx bisect` may have found, for tests of what shows it."""

from epctx.commands.bisect.result import Bisection, Cause, Proposal, Reading
from epctx.verification.findings import Comparison


def reading(place: int, sqnr: float | None, *, passed: bool) -> Reading:
    """Of node `<n0>` and so on."""
    return Reading(
        place=place,
        value=f"v{place}",
        node=f"<n{place}>",
        op_type="MatMul",
        passed=passed,
        comparison=Comparison(dtype="float32", shape=(1,), sqnr=sqnr, max_rel=0.5),
    )


READ = (
    reading(0, None, passed=True),
    reading(1, 40.0, passed=True),
    reading(2, -3.0, passed=False),
)
FOUND = Bisection(
    name="m",
    target="default",
    group="g",
    model="a",
    ended="found",
    readings=READ,
    first=READ[2:],
    cause=Cause(kind="fp16 overflow", why="too large"),
    tried=(
        Proposal(
            what="a node",
            manifest={"model_groups": {"g": {"partition": {"exclude": {"nodes": ["n2"]}}}}},
        ),
    ),
)
