"""Whether every dependency has wheels for every platform: `python -m scripts.wheels`.

Of what epctx and its extras need on each platform, down to the last dependency, in the versions of
constraints.txt. It asks the package index that pip is set up with, once for each distribution;
prints who has wheels for what; and fails where that is not `PROMISED`, which
docs/reference/hosts.md has too.

Needs an installed epctx: which dependency needs which is read from their metadata.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from packaging import tags
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from scripts.package_index import files_on_index

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
_PYTHON = "Programming Language :: Python :: "
PYTHONS = tuple(
    line.removeprefix(_PYTHON)
    for line in metadata.metadata("epctx").get_all("Classifier", [])
    if line.startswith(_PYTHON)
)
"""The versions of Python that epctx says it is for."""
EXTRAS = ("", "qnn", "openvino", "remote", "oci", "dask")
PROMISED: Mapping[str, tuple[str, ...]] = {
    "Windows x64": (
        "3.11, 3.12, 3.13",
        "3.11, 3.12, 3.13",
        "3.11, 3.12, 3.13",
        "3.11, 3.12, 3.13",
        "3.11, 3.12, 3.13",
        "3.11, 3.12, 3.13",
    ),
    "Windows Arm64": (
        "3.12, 3.13; 3.11: no pyyaml",
        "3.12, 3.13; 3.11: no pyyaml",
        "no onnxruntime-ep-openvino",
        "3.12, 3.13; 3.11: no pyyaml",
        "3.12, 3.13; 3.11: no pyyaml",
        "3.12, 3.13; 3.11: no pyyaml",
    ),
    "Linux x86-64": (
        "3.11, 3.12, 3.13; glibc 2.28",
        "3.11, 3.12, 3.13; glibc 2.35",
        "3.11, 3.12, 3.13; glibc 2.28",
        "3.11, 3.12, 3.13; glibc 2.28",
        "3.11, 3.12, 3.13; glibc 2.28",
        "3.11, 3.12, 3.13; glibc 2.28",
    ),
    "Linux aarch64": (
        "3.11, 3.12, 3.13; glibc 2.28",
        "3.11, 3.12, 3.13; glibc 2.34",
        "no onnxruntime-ep-openvino",
        "3.11, 3.12, 3.13; glibc 2.28",
        "3.11, 3.12, 3.13; glibc 2.28",
        "3.11, 3.12, 3.13; glibc 2.28",
    ),
    "macOS arm64": (
        "3.11, 3.12, 3.13; macOS 14",
        "no onnxruntime-qnn",
        "no onnxruntime-ep-openvino",
        "3.11, 3.12, 3.13; macOS 14",
        "3.11, 3.12, 3.13; macOS 14",
        "3.11, 3.12, 3.13; macOS 14",
    ),
    "macOS x86-64": (
        "no onnxruntime",
        "no onnxruntime, onnxruntime-qnn",
        "no onnxruntime, onnxruntime-ep-openvino",
        "no onnxruntime",
        "no onnxruntime",
        "no onnxruntime",
    ),
}
"""For each platform and extra, the Pythons for which all wheels are there, and the least system."""
_ANY = "any"

Wheel = frozenset[tags.Tag]
"""What a wheel is for."""


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform, and what pip there makes of requirements and wheels.

    Attributes:
        system: as of `sys.platform`.
        machine: as of `platform.machine()`.
        tags: what a wheel may say that it is for, the least demanding first.
    """

    name: str
    system: str
    machine: str
    tags: tuple[str, ...]

    def environment(self, python: str) -> dict[str, str]:
        """What the markers of requirements are evaluated in."""
        names = {"win32": "Windows", "linux": "Linux", "darwin": "Darwin"}
        return {
            "sys_platform": self.system,
            "platform_system": names[self.system],
            "platform_machine": self.machine,
            "os_name": "nt" if self.system == "win32" else "posix",
            "python_version": python,
            "python_full_version": f"{python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }

    def least(self, wheels: Iterable[Wheel], python: str) -> str | None:
        """The least demanding tag among the wheels for this platform; else `_ANY`, if one is for
        every platform; None: none can be installed here.
        """
        offered = {tag for wheel in wheels for tag in wheel}
        known = _known(self.tags, python)
        return next((place for place in known if not known[place].isdisjoint(offered)), None)

    def rank(self, place: str) -> int:
        """How demanding a tag is."""
        return -1 if place == _ANY else self.tags.index(place)


@functools.cache
def _known(places: tuple[str, ...], python: str) -> Mapping[str, Wheel]:
    """All that a wheel may say that is for one of `places`, or, last, for every platform."""
    version = tuple(map(int, python.split(".")))
    interpreter = f"cp{python.replace('.', '')}"
    found = {
        place: (
            *tags.cpython_tags(version, platforms=[place]),
            *tags.compatible_tags(version, interpreter, platforms=[place]),
        )
        for place in (*places, _ANY)
    }
    return {p: frozenset(tag for tag in f if tag.platform == p) for p, f in found.items()}


_OLDER = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
"""Names from before `manylinux_2_<minor version of glibc>`."""


def _glibc(machine: str) -> tuple[str, ...]:
    minors = {**_OLDER, **{f"manylinux_2_{minor}": minor for minor in range(5, 40)}}
    return tuple(f"{name}_{machine}" for name in sorted(minors, key=minors.__getitem__))


def _macos(machine: str) -> tuple[str, ...]:
    return tuple(tags.mac_platforms((15, 0), machine))[::-1]


PLATFORMS = (
    Platform(name="Windows x64", system="win32", machine="AMD64", tags=("win_amd64",)),
    Platform(name="Windows Arm64", system="win32", machine="ARM64", tags=("win_arm64",)),
    Platform(name="Linux x86-64", system="linux", machine="x86_64", tags=_glibc("x86_64")),
    Platform(name="Linux aarch64", system="linux", machine="aarch64", tags=_glibc("aarch64")),
    Platform(name="macOS arm64", system="darwin", machine="arm64", tags=_macos("arm64")),
    Platform(name="macOS x86-64", system="darwin", machine="x86_64", tags=_macos("x86_64")),
)


@dataclass(kw_only=True)
class Dependency:
    """A distribution that epctx, or an extra of it, needs somewhere.

    Attributes:
        by: for each platform and Python that need it, the extras that do ("": epctx itself).
        least: for each of those, what `Platform.least` says.
    """

    name: str
    version: Version
    by: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    least: dict[tuple[str, str], str | None] = field(default_factory=dict)

    def judge(self, files: Iterable[str]) -> None:
        """Take note of the wheels among the names of its files."""
        wheels = list(_wheels(files, self.version))
        for platform in PLATFORMS:
            for python in PYTHONS:
                if (platform.name, python) in self.by:
                    self.least[platform.name, python] = platform.least(wheels, python)


def _wheels(files: Iterable[str], version: Version) -> Iterator[Wheel]:
    for name in files:
        try:
            _, found, _, wheel = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue  # a source distribution
        if found == version:
            yield wheel


def dependencies(constraints: str) -> list[Dependency]:
    """All that epctx needs somewhere, by name, in the versions of a file of constraints.

    Raises:
        LookupError: one has no version there.
    """
    pairs = (line.split("==") for line in constraints.splitlines())
    pins = {str(canonicalize_name(name)): Version(version) for name, version in pairs}
    found: dict[str, Dependency] = {}
    for platform in PLATFORMS:
        for python in PYTHONS:
            for extra in EXTRAS:
                for name in _closure(extra, platform.environment(python)):
                    if name not in pins:
                        raise LookupError(f"{name}, needed on {platform.name}, has no constraint")
                    each = found.setdefault(name, Dependency(name=name, version=pins[name]))
                    each.by.setdefault((platform.name, python), set()).add(extra)
    return [found[name] for name in sorted(found)]


def _closure(extra: str, environment: Mapping[str, str]) -> set[str]:
    """What `epctx[extra]` needs in an environment, directly or not."""
    todo = [("epctx", frozenset({extra}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        each = todo.pop()
        if each in seen:
            continue
        seen.add(each)
        name, extras = each
        for requirement in _requirements(name):
            marker = requirement.marker
            by = ({**environment, "extra": extra} for extra in extras or {""})
            if marker is None or any(map(marker.evaluate, by)):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen} - {"epctx"}


@functools.cache
def _requirements(name: str) -> tuple[Requirement, ...]:
    try:
        return tuple(map(Requirement, metadata.distribution(name).requires or ()))
    except metadata.PackageNotFoundError:
        return ()  # it is for another platform than this; those need nothing


def summary(found: Iterable[Dependency], platform: Platform, extra: str) -> str:
    """For which Pythons `epctx[extra]` has all wheels on a platform; what is missing for others."""
    needed = [each for each in found if any(extra in extras for extras in each.by.values())]
    complete: list[str] = []
    missing: dict[str, list[str]] = {}
    system = _ANY
    for python in PYTHONS:
        here = (platform.name, python)
        least = {each.name: each.least[here] for each in needed if extra in each.by.get(here, ())}
        lacking = [name for name, place in least.items() if place is None]
        if lacking:
            missing[python] = lacking
        else:
            complete.append(python)
            system = max([system, *filter(None, least.values())], key=platform.rank)
    everywhere = set.intersection(*map(set, missing.values())) if not complete else set()
    if everywhere:
        return f"no {', '.join(sorted(everywhere))}"
    gaps = (f"{python}: no {', '.join(names)}" for python, names in missing.items())
    return "; ".join([*filter(None, [", ".join(complete)]), *gaps, *_least_system(system)])


def _least_system(place: str) -> list[str]:
    """`glibc 2.28` for `manylinux_2_28_x86_64`, and the like."""
    kind, *numbers = place.split("_")
    if kind in ("manylinux", *_OLDER):
        return [f"glibc 2.{_OLDER.get(kind) or numbers[1]}"]
    return [f"macOS {numbers[0]}"] if kind == "macosx" else []


def _cell(dependency: Dependency, platform: Platform) -> str:
    """What a distribution has for a platform; empty: it is not needed there."""
    places = {py: dependency.least.get((platform.name, py), "") for py in PYTHONS}
    if set(places.values()) == {""}:
        return ""
    has = [python for python, place in places.items() if place]
    systems = [place for place in places.values() if place]
    least = max(systems, key=platform.rank) if systems else ""
    words = _least_system(least) or (["any"] if least == _ANY else [])
    pythons = [] if len(has) == len(PYTHONS) and words else [" ".join(has) or "none"]
    return ", ".join([*pythons, *words])


def _print(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print()


def main() -> int:
    """Print the tables. 1: there is less than is promised, or more."""
    found = dependencies(CONSTRAINTS.read_text(encoding="utf-8"))
    by_name = {each.name: each for each in found}
    for name, files in files_on_index(by_name):
        by_name[name].judge(files)
    head = ["", *(platform.name for platform in PLATFORMS)]
    cells = [[f"{d.name} {d.version}", *(_cell(d, p) for p in PLATFORMS)] for d in found]
    _print([head, *cells])
    summaries = {p.name: tuple(summary(found, p, extra) for extra in EXTRAS) for p in PLATFORMS}
    titles = ["", *(f"epctx[{extra}]" if extra else "epctx" for extra in EXTRAS)]
    _print([titles, *([name, *row] for name, row in summaries.items())])
    different = [name for name, row in summaries.items() if row != PROMISED[name]]
    for name in different:
        print(f"{name}: promised is {PROMISED[name]}", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
