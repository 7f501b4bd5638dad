"""An action is written once: that of tests/kit/listing.py is carried out, kept, locked, explained.

Its worker is a real one, which learns of it as it would by its line in `actions.kinds`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx.cache import Cache, locate
from epctx.engine import plan
from epctx.engine.actions.base import files_in
from epctx.engine.build import BuildContext
from epctx.engine.executor import Machines
from epctx.engine.options import BuildOptions
from epctx.engine.progress import GroupProgress
from epctx.engine.staleness import Explainer, PlannedAction
from epctx.engine.state import Known
from epctx.worker.pool import Pool
from tests.kit.listing import Listing, ListingResult
from tests.kit.projects import Project, make

ROOT = Path(__file__).parents[2]
LEARNS = (
    "from tests.kit import listing\nfrom epctx.actions import kinds\nkinds.KINDS = listing.KINDS\n"
)


class Process:
    """A build of the project by another process, as far as it is about one more action."""

    def __init__(self, project: Project, hook: Path) -> None:
        own = {"PYTHONPATH": f"{hook}:{ROOT}"}
        options = BuildOptions(out=project.folder / "dist", variables=own)
        planned = plan.read(project.manifest)
        cache = Cache(locate(), pytest.fail)
        self.building = BuildContext(planned, options, Machines(Pool), cache, lambda event: None)
        self.group = self.building.state(planned.groups[0])
        self.action = Listing(
            files={file.name: str(file.blake3) for file in self.group.files},
            unit=1,
            published=project.published / "g",
        )

    def carry_out(self, work: Path, **changes: Any) -> tuple[Known[ListingResult], bool]:
        """What there is of the action, and whether it was carried out."""
        action = replace(self.action, **changes)
        scheduler, actions = self.building.carrying_out(work, threads=1)
        progress = GroupProgress(self.group.planned, self.building.events)

        def find() -> Known[ListingResult]:
            return self.building.lookup.find(action)

        def run(known: Known[ListingResult]) -> Known[ListingResult]:
            job = replace(action, folder=actions.new_folder("l"))
            with actions.shared_lease() as lease:
                made = progress.run(lease, "g", job)
            files = files_in(job.folder, [job.folder])
            return actions.store(known, Listing.kind, made, folder=job.folder, files=files)

        with scheduler:
            found = actions.once(progress, Listing.kind, "g", find, run)
        self.building.memo.save()
        return found

    def explain(self, **changes: Any) -> PlannedAction:
        """What a build would do about it, and why."""
        known = self.building.lookup.find(replace(self.action, **changes))
        action = PlannedAction(action=Listing.kind, subject="g", state="up to date")
        return Explainer(self.group, self.building.memo).action(action, known)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    return make(tmp_path / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})


@pytest.fixture
def hook(tmp_path: Path, project: Project) -> Path:
    """The project is built; workers learn of the action by what is here."""
    project.build()
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(LEARNS, encoding="utf-8")
    return tmp_path / "hook"


def test_it_is_carried_out_once_and_kept_with_its_files(
    project: Project, hook: Path, tmp_path: Path
) -> None:
    first, ran = Process(project, hook).carry_out(tmp_path / "w1")
    assert ran and first.result is not None
    assert "a_ctx.onnx" in first.result.names and first.result.size > 0
    again, ran = Process(project, hook).carry_out(tmp_path / "w2", published=Path("/elsewhere"))
    assert not ran and again.result == first.result, "where files are is not in the key"
    assert again.stored is not None and first.key == again.key
    cache = Cache(locate(), pytest.fail)
    assert cache.fetch(again.stored, tmp_path / "out")
    assert "a_ctx.onnx" in (tmp_path / "out" / "list.txt").read_text(encoding="utf-8")
    other, ran = Process(project, hook).carry_out(tmp_path / "w3", unit=1024)
    assert ran and other.key != first.key


def test_two_at_once_carry_it_out_once(project: Project, hook: Path, tmp_path: Path) -> None:
    together = threading.Barrier(2)

    def one(number: int) -> bool:
        process = Process(project, hook)
        together.wait(timeout=300)
        return process.carry_out(tmp_path / f"w{number}", lasts=2.0)[1]

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(one, range(2))) == [False, True]


def test_why_it_runs_is_explained(project: Project, hook: Path, tmp_path: Path) -> None:
    assert Process(project, hook).explain().because == ("list of g: it never ran here",)
    Process(project, hook).carry_out(tmp_path / "w1")
    assert Process(project, hook).explain().state == "up to date"
    changed = Process(project, hook).explain(unit=1024)
    assert (changed.state, changed.because) == ("runs", ("unit: 1 is now 1024",))
