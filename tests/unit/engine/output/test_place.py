import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from epctx.engine.output import place as publish
from epctx.errors import StorageError
from epctx.files import outputs


@pytest.fixture
def place(tmp_path: Path) -> publish.OutputPaths:
    return publish.OutputPaths(out=tmp_path / "dist", name="m")


def stage(place: publish.OutputPaths, text: str) -> None:
    folder = place.staged("t", "g")
    folder.mkdir(parents=True)
    written = outputs.write(folder / "a.bin", [text.encode()])
    outputs.write_sums(folder, [written])


def published(place: publish.OutputPaths) -> str:
    return (place.group("t", "g") / "a.bin").read_text(encoding="utf-8")


def never() -> None:
    raise AssertionError("nobody else holds the lock")


def test_a_group_is_swapped_in_and_nothing_else_is_left(place: publish.OutputPaths) -> None:
    for text in ("one", "two"):
        with place.locked(never):
            stage(place, text)
            place.publish("t", "g")
        assert published(place) == text
    left = sorted(p.relative_to(place.out).as_posix() for p in place.out.rglob("*"))
    assert left == [".m.lock", "m", "m/t", "m/t/g", "m/t/g/SHA256SUMS", "m/t/g/a.bin"]


@pytest.mark.parametrize("refused", [False, True])
def test_what_was_there_stays_until_what_is_new_is_on_the_disk(
    place: publish.OutputPaths, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    old = place.staging / "old/t/g/a.bin"
    synced: list[tuple[Path, bool]] = []
    with place.locked(never):
        stage(place, "one")
        place.publish("t", "g")
        stage(place, "two")
        monkeypatch.setattr(outputs, "sync_folder", lambda p: synced.append((p, old.is_file())))
        with pytest.raises(StorageError) if refused else nullcontext(), place.flushing(["t", "u"]):
            place.publish("t", "g")
            if refused:
                raise StorageError("another group is refused", remedy="")
        assert old.exists() == refused  # the end of `locked` knows whether it is to be put back
    assert not old.exists()
    assert synced == [(place.staged("t", "g"), False), (place.root / "t", True)]
    assert published(place) == "two"


@pytest.mark.parametrize(
    ("renames", "killed"), [(0, False), (1, False), (0, True), (1, True), (2, True)]
)
def test_a_swap_that_is_cut_off_after_any_rename_is_repaired(
    place: publish.OutputPaths, monkeypatch: pytest.MonkeyPatch, renames: int, killed: bool
) -> None:
    with place.locked(never):
        stage(place, "old")
        place.publish("t", "g")

    class Cut(BaseException):
        pass

    rename = Path.rename
    done: list[Path] = []

    def cut(self: Path, target: Path) -> Path:
        if len(done) == renames:
            raise Cut
        done.append(target)
        return rename(self, target)

    def dead(self: publish.OutputPaths) -> None:
        raise Cut

    with pytest.raises(Cut), monkeypatch.context() as patch, place.locked(never):
        stage(place, "new")
        patch.setattr(Path, "rename", cut)
        if killed:  # then nothing is repaired on the way out either
            patch.setattr(publish.OutputPaths, "_repair", dead)
        try:
            place.publish("t", "g")
        finally:
            patch.setattr(Path, "rename", rename)
    with place.locked(never):
        assert published(place) == ("new" if renames == 2 else "old")
    assert not (place.out / "m.staging").exists()


def test_a_second_build_waits_for_the_first(place: publish.OutputPaths) -> None:
    waiting, order = threading.Event(), []

    def second() -> None:
        with place.locked(waiting.set):
            order.append("second")

    with place.locked(never):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_prune_removes_groups_that_the_manifest_lost_and_nothing_of_the_user(
    place: publish.OutputPaths,
) -> None:
    with place.locked(never):
        stage(place, "x")
        place.publish("t", "g")
        own = place.root / "notes" / "mine"
        own.mkdir(parents=True)
        (own / "a.txt").touch()
        place.prune(keep=set())
    assert [p.name for p in place.root.iterdir()] == ["notes"]


def stage_package(place: publish.OutputPaths, text: str) -> None:
    place.staged_package.mkdir(parents=True)
    outputs.write(place.staged_package / "manifest.json", [text.encode()])


@pytest.mark.parametrize(("renames", "left"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_swap_of_a_package_that_is_cut_off_is_repaired_by_the_next_command(
    place: publish.OutputPaths, monkeypatch: pytest.MonkeyPatch, renames: int, left: str
) -> None:
    with place.locked(never):
        stage_package(place, "old")
        place.publish_package()

    class Cut(BaseException):
        pass

    rename = Path.rename
    done: list[Path] = []

    def cut(self: Path, target: Path) -> Path:
        if len(done) == renames:
            raise Cut
        done.append(target)
        moved = rename(self, target)
        if len(done) == renames == 2:
            raise Cut
        return moved

    # Killed: nothing of the command runs after the cut.
    monkeypatch.setattr(publish.OutputPaths, "_repair", lambda self: None)
    monkeypatch.setattr(Path, "rename", cut)
    with pytest.raises(Cut), place.locked(never):
        stage_package(place, "new")
        place.publish_package()
    monkeypatch.undo()
    with place.locked(never):
        assert (place.package / "manifest.json").read_text(encoding="utf-8") == left
    assert not place.staging.exists()
