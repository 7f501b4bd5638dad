from msgspec.structs import replace

from epctx.commands.report.spent import DOING, sentence
from epctx.commands.report.timeline import STAGES
from epctx.engine.report import BuildReport, GroupReport, StageTime
from tests.kit.reports import report


def build(seconds: float, **stages: dict[str, float]) -> BuildReport:
    groups = tuple(
        GroupReport(
            target="edge",
            group=group,
            state="built",
            stages=tuple(
                StageTime(stage=stage, subject="m", start=0, end=took)
                for stage, took in times.items()
            ),
        )
        for group, times in stages.items()
    )
    return replace(report(), groups=groups, seconds=seconds)


def test_the_longest_stage_comes_first_and_the_rest_last() -> None:
    told = sentence(build(12.3, llm={"verify": 1.9, "compile": 9.8, "load": 0.01}))
    assert told == "12.3 s: 9.80 s compiling (80 %), 1.90 s verifying (15 %), 0.60 s for the rest."


def test_with_several_groups_it_names_the_one_that_took_the_time() -> None:
    told = sentence(build(10.0, llm={"compile": 6.0, "verify": 1}, eye={"compile": 1.0}))
    assert told == (
        "10.0 s: 7.00 s compiling (70 %, most of it llm@edge), 1.00 s verifying llm@edge (10 %), "
        "2.00 s for the rest."
    )
    assert "most of it" not in sentence(build(10.0, a={"compile": 1}, b={"compile": 1}))


def test_work_at_the_same_time_is_no_share_of_the_clock() -> None:
    told = sentence(build(5.0, a={"compile": 4.0}, b={"compile": 4.0}))
    assert told == (
        "5.00 s in which 8.00 s of work was done, several stages at a time: "
        "8.00 s compiling (100 %)."
    )


def test_a_build_with_nothing_to_do_says_so() -> None:
    assert sentence(build(0.4)) == "0.40 s: no stage had to run."


def test_every_stage_has_its_word() -> None:
    assert set(DOING) == set(STAGES)
