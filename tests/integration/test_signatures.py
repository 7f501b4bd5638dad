"""Signed packages and outputs, held to OpenSSF's own `model-signing`, both ways; and attacked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from epctx import api
from tests.kit import packaged, signing
from tests.kit.command_line import inside
from tests.kit.projects import Project

pytestmark = pytest.mark.usefixtures("jobs_inline")
theirs = pytest.mark.needs("module model_signing", "it is whom we hold ourselves to")
CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, jobs_inline: None) -> Project:
    """Packaged and signed; the key is `k.pem`."""
    folder = tmp_path_factory.mktemp("signed")
    signing.write_key(folder, "k")
    made = packaged.with_extras(folder)
    made.write()
    ran = inside("package", "m.yaml", "--sign", "k.pem", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert "signed by the key " in ran.stdout
    return made


@pytest.fixture
def package(project: Project, tmp_path: Path) -> Path:
    """A copy of the package, as a device gets it, with the public key beside it."""
    shutil.copy(project.folder / "k.pub", tmp_path)
    return Path(shutil.copytree(packaged.made(project), tmp_path / "p"))


def verified(package: Path, *options: str) -> tuple[int, str]:
    ran = inside("verify", package.name, *options, cwd=package.parent)
    return ran.returncode, ran.stdout


def test_a_package_is_verified_by_its_signature_where_it_was_copied_to(package: Path) -> None:
    code, told = verified(package, "--trusted-key", "k.pub", "-v")
    assert code == 0, told
    assert "ok: model.sig: is by the key " in told and "as they were signed" in told
    assert verified(package)[0] == 0, "nobody asks whose it is"
    assert verified(package, "--strict")[0] == 7


def test_who_replaces_a_file_and_all_sums_of_it_is_told(package: Path) -> None:
    """All that is in the package agrees with itself, and nothing of it is opened."""
    (model,) = (package / "one").rglob("*_ctx.onnx")
    model.write_bytes(b"\xff" * 99)
    packaged.resum(package)
    code, told = verified(package, "--trusted-key", "k.pub")
    assert code == 7
    name = model.relative_to(package).as_posix()
    assert f"failed[E0706]: {name}, SHA256SUMS: was changed since it was signed" in told.replace(
        f"SHA256SUMS, {name}", f"{name}, SHA256SUMS"
    )
    assert "conformance" not in told


def test_json_and_junit_have_it_too(package: Path) -> None:
    (package / "model.sig").unlink()
    options = ("--trusted-key", "k.pub", "--junit", "v.xml", "--format", "json")
    code, told = verified(package, *options)
    findings = [f for folder in json.loads(told)["folders"] for f in folder["findings"]]
    assert code == 7 and [f["policy"] for f in findings] == ["signature"]
    assert 'type="E0706"' in (package.parent / "v.xml").read_text(encoding="utf-8")


def test_a_lock_and_a_signature_hold_together(project: Project) -> None:
    ran = inside("build", "m.yaml", "--sign", "k.pem", "--archive", cwd=project.folder)
    assert ran.returncode == 0, ran.stderr
    assert "dist/m/model.sig" in ran.stdout
    options = ("--lock", "m.lock.yaml", "--trusted-key", "k.pub")
    ran = inside("verify", "dist", *options, cwd=project.folder)
    assert ran.returncode == 0, ran.stdout
    again = inside("build", "m.yaml", "--locked", cwd=project.folder)
    assert again.returncode == 0 and (project.folder / "dist/m/model.sig").exists()
    ran = inside("package", "m.yaml", cwd=project.folder)
    assert "up to date" in ran.stdout and "signed" not in ran.stdout
    assert (packaged.made(project) / "model.sig").exists(), "it is of the same package"


UNSIGNED: dict[str, Callable[[Path], object]] = {
    "a kit": lambda d: shutil.copytree(d / "m" / "one" / "g", d / "m.kit" / "one" / "g"),
    "a plain model": lambda d: (d / "x.onnx").touch(),
    "a script": lambda d: (d / "run.sh").touch(),
    "a page beside the outputs": lambda d: (d / "m.report.html").touch(),
    "a link": lambda d: (d / "link").symlink_to(d / "m"),
    "an empty folder": lambda d: (d / "m.logs").mkdir(),
    "git's hooks, in what is signed": lambda d: (d / "m" / ".git" / "hooks").mkdir(parents=True),
    "git's attributes, in what is signed": lambda d: (d / "m" / ".gitattributes").touch(),
}


@pytest.mark.needs("links", "some are put in the way")
@pytest.mark.parametrize("name", UNSIGNED)
def test_whatever_no_signature_covers_fails(name: str, project: Project, tmp_path: Path) -> None:
    assert inside("build", "m.yaml", "--sign", "k.pem", cwd=project.folder).returncode == 0
    dist = Path(shutil.copytree(project.folder / "dist", tmp_path / "dist"))
    (dist / "m.tar").unlink(missing_ok=True)
    key = project.folder / "k.pub"
    report = api.verify(dist, trusted_key=[key])
    assert report.passed, [*report.findings("fail")]
    assert {f.subject for f in report.findings("not covered")} >= {"m.build.json"}
    UNSIGNED[name](dist)
    report = api.verify(dist, trusted_key=[key])
    assert [f.policy for f in report.findings("fail")] == ["signature"]


def test_a_signature_is_removed_with_what_it_was_of(tmp_path: Path) -> None:
    signing.write_key(tmp_path, "k")
    project = packaged.with_extras(tmp_path)
    project.write()
    assert inside("build", "m.yaml", "--sign", "k.pem", cwd=tmp_path).returncode == 0
    project.section("model_groups", "g")["node_name_prefix"] = "other_"
    project.write()
    ran = inside("build", "m.yaml", cwd=tmp_path)
    assert "removed model.sig, which belonged to earlier outputs" in ran.stderr
    assert not (tmp_path / "dist/m/model.sig").exists()


def test_a_part_is_not_signed(project: Project) -> None:
    ran = inside("build", "m.yaml", "--only", "g@one", "--sign", "k.pem", cwd=project.folder)
    assert ran.returncode == 2 and "--sign" in ran.stderr
    ran = inside("build", "m.yaml", "--cert", "k.pub", cwd=project.folder)
    assert ran.returncode == 2 and "name the key with --sign" in ran.stderr


@theirs
@pytest.mark.parametrize("curve", CURVES)
def test_what_we_sign_they_verify_and_what_they_sign_we_verify(
    package: Path, tmp_path: Path, curve: str
) -> None:
    from model_signing import signing as their_signing
    from model_signing import verifying

    private, public = signing.write_key(tmp_path, "other", CURVES[curve])
    (package / "model.sig").unlink()
    api.sign(package, key=private)
    config = verifying.Config().use_elliptic_key_verifier(public_key=public)
    config.verify(package, package / "model.sig")
    assert verified(package, "--trusted-key", "other.pub")[0] == 0
    ours = (package / "model.sig").read_bytes()
    (package / "model.sig").unlink()
    their_signing.Config().use_elliptic_key_signer(private_key=private).sign(
        package, package / "model.sig"
    )
    assert (package / "model.sig").read_bytes() != ours
    code, told = verified(package, "--trusted-key", "other.pub")
    assert code == 0, told
    (file,) = (package / "two").rglob("readme.txt")
    file.write_bytes(b"")
    code, told = verified(package, "--trusted-key", "other.pub")
    assert code == 7 and "was changed since it was signed" in told
    with pytest.raises(ValueError, match="mismatch"):
        verifying.Config().use_elliptic_key_verifier(public_key=public).verify(
            package, package / "model.sig"
        )


@theirs
def test_certificates_go_both_ways(package: Path, tmp_path: Path) -> None:
    from model_signing import signing as their_signing
    from model_signing import verifying

    root = signing.root()
    between = signing.certified("between", root, ca=True)
    leaf = signing.leaf(between)
    _, ca = root.write(tmp_path)
    _, chain = between.write(tmp_path)
    key, cert = leaf.write(tmp_path)
    (package / "model.sig").unlink()
    api.sign(package, key=key, cert=cert, chain=chain)
    verifier = verifying.Config().use_certificate_verifier(certificate_chain=[ca])
    verifier.verify(package, package / "model.sig")
    code, told = verified(package, "--trusted-ca", "root.crt", "-v")
    assert code == 0 and "is by CN=release" in told
    (package / "model.sig").unlink()
    their_signing.Config().use_certificate_signer(
        private_key=key, signing_certificate=cert, certificate_chain=[chain]
    ).sign(package, package / "model.sig")
    assert verified(package, "--trusted-ca", "root.crt")[0] == 0
    assert verified(package, "--trusted-ca", "between.crt")[0] == 0, "whoever is named is trusted"
    code, told = verified(package, "--trusted-key", "k.pub")
    assert code == 7 and "no authority is trusted" in told


@theirs
def test_names_that_sort_in_two_ways_and_files_of_git(tmp_path: Path) -> None:
    """By code points `b-c` comes before `b/c`, part by part after it; both are in one folder."""
    from model_signing import verifying

    folder = tmp_path / "f"
    for name in ("b/c", "b-c", "B", ".git/x", ".gitignore", "é", "b/.gitignore"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")
    private, public = signing.write_key(tmp_path, "k")
    assert api.sign(folder, key=private).files == 5
    config = verifying.Config().use_elliptic_key_verifier(public_key=public)
    config.verify(folder, folder / "model.sig")
