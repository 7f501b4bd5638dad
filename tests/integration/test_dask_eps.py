"""Machines that are not alike: who takes what, what is told at once, and who is let in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from epctx import api
from epctx.errors import ProviderUnavailable, UsageError
from epctx.machines import serving
from epctx.machines.address import Tls
from tests.kit import certificates
from tests.kit.command_line import FAULTY, epctx
from tests.kit.machines import Machines, machines
from tests.kit.projects import Project, make

pytestmark = [
    pytest.mark.needs("POSIX", "needs SIGKILL"),
    pytest.mark.needs("module distributed", "the extra [dask]"),
]
QNN, OTHER = "QNNExecutionProvider", "FaultyExecutionProvider"


def npus(folder: Path) -> Project:
    """A group for a real EP, and one for an EP of somebody else's package."""
    made = make(folder, {"q": ["a"], "o": ["b"]}, verify={"inputs": {"count": 1}})
    made.document["execution_providers"] = {
        "qnn": {"provider": QNN, "options": {"soc_model": "60"}},
        "other": {"provider": OTHER, "allow_unknown_options": True},
    }
    made.section("model_groups", "q")["execution_providers"] = ["qnn"]
    made.section("model_groups", "o")["execution_providers"] = ["other"]
    made.write()
    return made


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """One machine with QNN, one with the other EP."""
    with machines(tmp_path_factory.mktemp("unlike"), 0) as made:
        made.worker()
        made.worker(EPCTX_HIDE_DEVICES=QNN, PYTHONPATH=str(FAULTY))
        yield made


@pytest.mark.needs_device(QNN)
def test_each_group_is_built_where_its_ep_is_with_the_bytes_of_a_local_build(
    tmp_path: Path, unlike: Machines
) -> None:
    local = npus(tmp_path / "local")
    done = epctx("build", "m.yaml", "--no-cache", cwd=local.folder, PYTHONPATH=str(FAULTY))
    assert done.returncode == 0, done.stderr
    made = npus(tmp_path / "p")
    build = unlike.build(made.folder)
    output, _ = build.communicate(timeout=180)
    assert build.returncode == 0, output
    assert made.files() == local.files()
    assert made.lock.read_bytes() == local.lock.read_bytes()
    text = (made.folder / "dist" / "m.build.json").read_text(encoding="utf-8")
    where = {
        group["group"]: {stage["machine"] for stage in group["stages"]}
        for group in json.loads(text)["groups"]
    }
    assert where == {"q": {"w0"}, "o": {"w1"}}


def test_what_no_machine_can_take_is_told_at_once_with_what_is_missing(
    tmp_path: Path, unlike: Machines
) -> None:
    made = make(tmp_path / "p", {"g": ["a"]})
    made.section("execution_providers", "ref")["provider"] = "NobodysExecutionProvider"
    made.section("execution_providers", "ref")["allow_unknown_options"] = True
    made.write()
    build = unlike.build(made.folder)
    output, _ = build.communicate(timeout=300)
    assert build.returncode == 5, output
    assert "no worker can run NobodysExecutionProvider" in output
    assert "w0: " in output and "w1: " in output and "Traceback" not in output


@pytest.mark.soak
def test_one_ep_in_two_versions_is_refused_with_both_machines(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(FAULTY, other)
    with (other / "epctx_faulty" / "__init__.py").open("a", encoding="utf-8") as code:
        code.write("\nNEWER = True\n")
    made = make(tmp_path / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})
    made.section("execution_providers", "ref")["provider"] = OTHER
    made.section("execution_providers", "ref")["allow_unknown_options"] = True
    made.write()
    with machines(tmp_path / "m", 0) as found:
        first = found.worker(PYTHONPATH=str(FAULTY))
        second = found.worker(PYTHONPATH=str(other))
        build = found.build(made.folder)
        output, _ = build.communicate(timeout=300)
        assert build.returncode == 5, output
        assert "FaultyExecutionProvider differs between workers" in output
        assert "w0 and w1" in output
        second.kill()
        second.wait()
        build = found.build(made.folder)
        output, _ = build.communicate(timeout=300)
        assert build.returncode == 0, output  # and this machine does not have the EP
        assert first.poll() is None


def test_who_has_no_certificate_of_the_authority_is_not_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is told so: dask's own words are a timeout, or a connection that is closed."""
    made = make(tmp_path / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})
    with machines(tmp_path / "m", 1, *certificates.made(tmp_path / "tls")) as found:
        build = found.build(made.folder)
        output, _ = build.communicate(timeout=300)
        assert build.returncode == 0, output
        for options, told in (
            (certificates.made(tmp_path / "others"), "do not accept each other's certificates"),
            ((), "the scheduler requires TLS, but no certificates are given"),
        ):
            found.options = options
            build = found.build(made.folder)
            output, _ = build.communicate(timeout=90)
            assert build.returncode == 5 and told in output, output
            assert "with --tls-ca, --tls-cert and --tls-key" in output, output
            assert "Traceback" not in output and "there is no scheduler" not in output
        monkeypatch.setattr(serving, "_REACHED", 2)
        contact = found.url.replace("dask://", "tcp://")
        with pytest.raises(ProviderUnavailable, match="the scheduler requires TLS") as refused:
            serving.serve(contact, None, (tmp_path / "shared").as_uri(), name="w")
        assert refused.value.code == "E0504"


def test_certificates_for_a_scheduler_without_tls_are_no_absent_scheduler(tmp_path: Path) -> None:
    made = make(tmp_path / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})
    with machines(tmp_path / "m", 0) as found:
        found.options = certificates.made(tmp_path / "tls")
        command = ("worker", found.url, "--name", "w", *found.options)
        for done in (
            epctx(
                "build",
                "m.yaml",
                "--on",
                found.url,
                *found.options,
                cwd=made.folder,
                **found.variables,
            ),
            epctx(*command, cwd=tmp_path, **found.variables),
        ):
            assert done.returncode == 5, done.stderr
            assert "the scheduler does not use TLS, but certificates are given" in done.stderr
            assert "dask scheduler --protocol tls" in done.stderr


@pytest.mark.parametrize(
    ("on", "shared", "tls", "told"),
    [
        ("dask://127.0.0.1:1", "", Tls(), "other machines need a shared cache"),
        ("dask://10.1.2.3:1", "", Tls(), "whoever reaches 10.1.2.3"),
        ("dask://local?workers=none", "", Tls(), "is not an address of machines"),
        ("http://127.0.0.1:1", "", Tls(), "is not an address of machines"),
        ("dask://h:1", "", Tls(ca=Path("m.yaml")), "TLS also needs --tls-cert and --tls-key"),
        ("dask://127.0.0.1:1", "ftp://x", Tls(), "is not a shared cache"),
    ],
)
def test_what_cannot_be_meant_is_exit_2_at_once(
    tmp_path: Path, on: str, shared: str, tls: Tls, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_REMOTE_CACHE", shared)
    made = make(tmp_path / "p", {"g": ["a"]})
    with pytest.raises(UsageError) as refused:
        api.build(made.manifest, out=tmp_path / "dist", remote_cache="", on=on, tls=tls)
    assert refused.value.exit_code == 2 and told in str(refused.value)
