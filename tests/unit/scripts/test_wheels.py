"""The check of wheels, on an index of a few empty files; `make wheels` asks the real one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from scripts import package_index, wheels
from scripts.wheels import PLATFORMS, PROMISED, PYTHONS, Dependency, summary

WINDOWS, ARM, LINUX, _, MAC, _ = PLATFORMS
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "hosts.md"


def dependency(name: str, *files: str, extra: str = "") -> Dependency:
    made = Dependency(name=name, version=Version("1.0"))
    made.by = {(platform.name, py): {extra} for platform in PLATFORMS for py in PYTHONS}
    made.judge(f"{name}-1.0-{file}.whl" for file in files)
    return made


PURE = dependency("pure", "py2.py3-none-any")
NATIVE = dependency(
    "native",
    "cp312-cp312-win_arm64",
    "cp313-cp313-win_arm64",
    "cp38-abi3-win_amd64",
    "cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64",
    "cp312-cp312-manylinux2014_x86_64",
    "cp313-cp313-manylinux_2_5_x86_64",
    "cp313-cp313t-macosx_11_0_arm64",
    "cp311-cp311-macosx_99_0_arm64",
)
EXTRA = dependency("extra", "py3-none-win_amd64", extra="qnn")


@pytest.mark.parametrize(
    ("platform", "extra", "words"),
    [
        (WINDOWS, "", "3.11, 3.12, 3.13"),
        (WINDOWS, "qnn", "3.11, 3.12, 3.13"),
        (ARM, "", "3.12, 3.13; 3.11: no native"),
        (ARM, "qnn", "no extra"),
        (LINUX, "", "3.11, 3.12, 3.13; glibc 2.27"),
        (MAC, "", "no native"),
    ],
)
def test_what_is_there_and_what_is_not(platform: wheels.Platform, extra: str, words: str) -> None:
    assert summary([PURE, NATIVE, EXTRA], platform, extra) == words


def test_a_source_distribution_and_another_version_are_no_wheels() -> None:
    made = dependency("native")
    made.judge(["native-1.0.tar.gz", "native-2.0-py3-none-any.whl", "native-1.0.exe"])
    assert set(made.least.values()) == {None}


def test_what_only_windows_needs_is_found_and_has_a_constraint() -> None:
    constraints = wheels.CONSTRAINTS.read_text(encoding="utf-8")
    found = {each.name: each for each in wheels.dependencies(constraints)}
    assert {platform for platform, _ in found["colorama"].by} == {WINDOWS.name, ARM.name}
    assert found["onnxruntime-qnn"].by[LINUX.name, "3.12"] == {"qnn"}
    assert "" in found["pyyaml"].by[LINUX.name, "3.12"]
    without = constraints.replace("colorama==", "colour==")
    with pytest.raises(LookupError, match="colorama, needed on Windows x64, has no constraint"):
        wheels.dependencies(without)


def test_a_wheel_that_is_missing_fails_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        pins = {each.name: each.version for each in wheels.dependencies(constraints)}
        for name in names:
            kind = "py3-none-win_amd64" if name == "rich" else "py3-none-any"
            yield name, [f"{name.replace('-', '_')}-{pins[name]}-{kind}.whl"]

    constraints = wheels.CONSTRAINTS.read_text(encoding="utf-8")
    monkeypatch.setattr(wheels, "files_on_index", answer)
    all_there = {p.name: ("no rich",) * 6 if p != WINDOWS else PROMISED[p.name] for p in PLATFORMS}
    monkeypatch.setattr(wheels, "PROMISED", all_there)
    assert wheels.main() == 0
    monkeypatch.setattr(wheels, "PROMISED", {**all_there, ARM.name: PROMISED[WINDOWS.name]})
    capsys.readouterr()
    assert wheels.main() == 1
    told = capsys.readouterr()
    assert f"{ARM.name}  " in told.out and "no rich" in told.out
    assert told.err.splitlines() == [f"{ARM.name}: promised is {PROMISED[WINDOWS.name]}"]


def test_files_are_those_of_the_index_that_pip_is_set_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "native" / "index.html"
    page.parent.mkdir()
    names = ["native-1.0-py3-none-any.whl", "native-1.0.tar.gz", "native-1.1-py3-none-any.whl"]
    links = [f'<a href="{name}">{name}</a>' for name in names[:2]]
    links.append(f'<a href="{names[2]}" data-yanked="broken">{names[2]}</a>')
    page.write_text("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "no-configuration"))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", tmp_path.as_uri())
    assert dict(package_index.files_on_index(["native"])) == {"native": names[:2]}
    with pytest.raises(LookupError, match="does not answer for other"):
        dict(package_index.files_on_index(["other"]))


def test_the_page_of_hosts_says_what_is_promised() -> None:
    rows = {
        cells[0]: tuple(cells[1:])
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 7
    }
    assert {name: rows.get(name) for name in PROMISED} == dict(PROMISED)
