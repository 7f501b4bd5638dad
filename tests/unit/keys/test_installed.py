"""What a module of others is made of, so that no change of it goes unseen."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from epctx.cache.digests import FreshDigests
from epctx.files.digest import Digest
from epctx.keys import installed

NATIVE = importlib.machinery.EXTENSION_SUFFIXES[0]


class Site:
    """A folder that Python looks for packages in, with a distribution `acme` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info = folder / "acme-1.0.dist-info"
        self.write("acme-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
        self.record()

    def write(self, name: str, content: str = "one") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def record(self, *names: str) -> None:
        """Note which files the distribution brought."""
        lines = [f"{name},," for name in (*names, "acme-1.0.dist-info/METADATA")]
        (self.info / "RECORD").write_text("\n".join(lines) + "\n")

    @property
    def distribution(self) -> Distribution:
        return PathDistribution(self.info)

    def code(self, module: str) -> Digest | None:
        return installed.code_of(module, self.distribution, FreshDigests())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return Site(folder)


def package(site: Site) -> str:
    for name in ("acme/__init__.py", "acme/deep/__init__.py", "acme/deep/way.py", "acme/t.bin"):
        site.write(name, "raise AssertionError('imported')")
    return "acme.deep.way"


def namespace(site: Site) -> str:
    for name in ("space/acme/__init__.py", "space/acme/t.bin", "space/acme/way.py"):
        site.write(name, "raise AssertionError('imported')")
    return "space.acme.way"


def module_in_a_namespace(site: Site) -> str:
    for name in ("space/way.py", "space/t.bin", f"space/_way{NATIVE}"):
        site.write(name, "raise AssertionError('imported')")
    return "space.way"


def module(site: Site) -> str:
    site.write("acme_way.py", "raise AssertionError('imported')")
    return "acme_way"


FORMS = [package, namespace, module_in_a_namespace, module]


@pytest.mark.parametrize("form", FORMS)
def test_any_file_counts_and_nothing_is_imported(
    site: Site, form: Callable[[Site], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = form(site)
    beside = site.write(f"_acme{NATIVE}")
    site.record(beside.name, "acme/missing.py", "../../bin/acme", "acme/__pycache__/x.pyc")
    before = site.code(way)
    assert before == site.code(way) is not None
    for path in sorted(site.folder.rglob("*")):
        if path.is_file() and path.parent != site.info:
            content = path.read_text()
            path.write_text("two")
            assert site.code(way) != before, path
            path.write_text(content)
    site.write("another/package.py")
    site.write("acme/__pycache__/x.pyc")
    assert site.code(way) == before
    assert not {"acme", "space", "acme_way"} & sys.modules.keys()


def test_what_it_requires_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    way = module(site)
    before = site.code(way)
    required = "Requires-Dist: depends>1; python_version>'3'\n"
    more = 'Requires-Dist: only; extra == "x"\nRequires-Dist: missing\nRequires-Dist: epctx\n'
    metadata = site.info / "METADATA"
    metadata.write_text(metadata.read_text() + more)
    assert site.code(way) == before
    metadata.write_text(metadata.read_text() + required)
    infos = [
        site.write(
            f"{name}-1.dist-info/METADATA", f"Name: {name}\nVersion: 1\nRequires-Dist: {to}\n"
        )
        for name, to in {"depends": "deeper", "deeper": "depends"}.items()
    ]
    found = {site.code(way), before}
    for info in infos:
        info.write_text(info.read_text().replace("Version: 1", "Version: 2"))
        found.add(site.code(way))
    assert len(found) == 4


@pytest.mark.parametrize("form", [package, module])
def test_of_what_is_installed_from_a_folder_the_modules_beside_it_count(
    site: Site, form: Callable[[Site], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "src"
    sources.mkdir()
    monkeypatch.syspath_prepend(sources)
    development = Site(sources)
    way = form(development)
    before = site.code(way)
    development.write("notes.txt")
    assert site.code(way) == before
    development.write(f"_acme{NATIVE}")
    assert site.code(way) != before
    assert installed.code_of(way, None, FreshDigests()) is not None


def test_what_is_nowhere_has_no_code(site: Site) -> None:
    (site.folder / "space").mkdir()
    for name in ("missing", "missing.inner", "space", "space.missing"):
        assert site.code(name) is None


def test_a_library_is_where_its_distribution_is_or_it_is_its_sources(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(site)
    assert installed.sources_of("acme", FreshDigests()) is None
    assert installed.sources_of("protobuf", FreshDigests()) is None
    other = tmp_path / "other" / "acme"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(other.parent)
    before = installed.sources_of("acme", FreshDigests())
    assert before is not None
    (other / "table.bin").write_text("")
    assert installed.sources_of("acme", FreshDigests()) != before
