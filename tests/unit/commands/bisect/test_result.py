"""What was found, as the functions that are given it see it."""

from msgspec.structs import replace

from epctx import codec
from epctx.commands.bisect.result import Bisection, Proposal

NOTHING = Bisection(name="m", target="default", group="g", model="a")


def test_the_proposal_that_repairs_the_build_is_the_one_that_was_seen_to() -> None:
    tried = (
        Proposal(what="a node", manifest={}, failure="still wrong"),
        Proposal(what="its op type", manifest={}),
    )
    assert replace(NOTHING, tried=tried).repair is tried[1]
    assert replace(NOTHING, tried=tried[:1]).repair is None
    assert NOTHING.repair is None


def test_it_comes_back_from_json_with_its_seed() -> None:
    again = codec.decode(codec.encode(NOTHING), Bisection)
    assert again == NOTHING and again.inputs.seed == 0
