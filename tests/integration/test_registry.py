"""Packages through a real registry, Debian's docker-registry, and through a foreign client."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import oras.client
import pytest
import requests

from epctx import api
from epctx import lockfile as locks
from epctx.errors import StorageError, UsageError, VerificationError
from epctx.oci import artifact
from tests.kit import packaged, projects, registries
from tests.kit import store_proxy as proxies
from tests.kit.command_line import inside
from tests.kit.packaged import tree
from tests.kit.projects import Project
from tests.kit.signing import write_key
from tests.kit.store_proxy import ALL, WRITES, Fault, Proxy

pytestmark = [registries.NEEDED, pytest.mark.usefixtures("jobs_inline")]
SCHEMA = Path(__file__).parents[1] / "kit" / "modelpack" / "config-schema.json"
"""Of model-spec v0.0.7, Apache-2.0."""
BUILDER = "https://ci.example.com/release"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A package of two targets whose variants share, attested, with something for a signature."""
    found = packaged.with_extras(tmp_path_factory.mktemp("pushed"))
    found.write()
    out = found.folder / "dist"
    api.package(found.manifest, out=out, jobs=2, attest=True, builder_id=BUILDER)
    return found


@pytest.fixture(scope="module")
def package(project: Project) -> Path:
    return packaged.made(project)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with registries.registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(scope="module")
def proxy(port: int) -> Iterator[Proxy]:
    with proxies.before(port) as found:
        yield found


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in sorted(tree(folder))}


def document(port: int, repository: str, name: str = "v1") -> dict[str, Any]:
    place = f"http://127.0.0.1:{port}/v2/{repository}/manifests/{name}"
    answer = requests.get(place, headers={"Accept": artifact.MANIFEST}, timeout=300)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_what_is_pushed_is_pulled_elsewhere_and_verified(
    project: Project, package: Path, port: int, tmp_path: Path
) -> None:
    name, lock = registries.reference(port, "whole/model"), str(project.lock)
    pushed = inside("push", package, name, "--insecure", cwd=tmp_path)
    assert pushed.returncode == 0, pushed.stderr
    assert "pushed: 10 files" in pushed.stdout and "with m.intoto.json" in pushed.stdout
    pulled = inside("pull", name, "here/m.ortpackage", "--insecure", cwd=tmp_path)
    assert pulled.returncode == 2, "there is no folder for it"
    (tmp_path / "here").mkdir()
    pulled = inside("pull", name, "here/m.ortpackage", "--insecure", cwd=tmp_path)
    assert pulled.returncode == 0, pulled.stderr
    assert content(tmp_path / "here" / "m.ortpackage") == content(package)
    attestation = (project.folder / "dist" / "m.intoto.json").read_bytes()
    assert (tmp_path / "here" / "m.intoto.json").read_bytes() == attestation
    here = {path.name for path in (tmp_path / "here").iterdir()}
    assert here == {"m.intoto.json", "m.ortpackage"}
    for what in (["here"], [name, "--insecure"]):
        verified = inside("verify", *what, "--lock", lock, "-v", cwd=tmp_path)
        assert verified.returncode == 0, verified.stdout
    assert "m.intoto.json: names this artifact" in verified.stdout
    assert "is the artifact of the lock" in verified.stdout
    assert "epctx-verify-" not in verified.stdout


def test_the_digest_is_known_before_anything_is_pushed(
    project: Project, package: Path, port: int
) -> None:
    """In the lock, and in the attestation."""
    report = api.push(package, registries.reference(port, "known/model"), insecure=True)
    assert locks.read(project.lock).oci == {"any": report.digest}
    statement = json.loads((project.folder / "dist" / "m.intoto.json").read_bytes())
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert report.digest == f"sha256:{subjects['m.ortpackage']}"
    folder = api.push(
        project.folder / "dist" / "m", registries.reference(port, "known/folder"), insecure=True
    )
    assert folder.digest == f"sha256:{subjects['m']}"
    assert folder.attached == ("m.intoto.json",)


def test_the_same_manifest_pushed_from_two_places_has_one_digest(
    package: Path, port: int, tmp_path: Path
) -> None:
    other = packaged.with_extras(tmp_path / "elsewhere")
    packaged.package(other)
    for path in tree(packaged.made(other)):
        os.utime(packaged.made(other) / path, (1, 1))
    first = api.push(package, registries.reference(port, "first/model"), insecure=True)
    second = api.push(
        packaged.made(other), registries.reference(port, "second/model", "other"), insecure=True
    )
    assert first.digest == second.digest


def test_what_is_pushed_twice_is_not_sent_twice(package: Path, proxy: Proxy) -> None:
    name = registries.reference(proxy.server_port, "twice/model")
    first = api.push(package, name, insecure=True)
    assert first.state == "pushed" and first.sent == first.size
    proxy.begin(None)
    again = api.push(package, name, insecure=True)
    assert (again.state, again.sent, again.digest) == ("up to date", 0, first.digest)
    assert not WRITES & set(proxy.seen) and len(proxy.seen) <= 4
    name = registries.reference(proxy.server_port, "twice/model", "v2")
    other = api.push(package, name, insecure=True)
    assert (other.state, other.sent) == ("pushed", 0)


def test_weights_that_are_shared_are_one_blob_and_mounted_elsewhere(
    package: Path, proxy: Proxy, port: int
) -> None:
    first = api.push(package, registries.reference(port, "mounted/from"), insecure=True)
    proxy.begin(None)
    name = registries.reference(proxy.server_port, "mounted/to")
    second = api.push(package, name, insecure=True, mount="mounted/from")
    assert (second.sent, second.mounted) == (0, first.size)
    layers = document(port, "mounted/to")["layers"]
    unique = {each["digest"] for each in layers}
    assert len(unique) < len(layers)
    assert proxy.seen.count("POST") == len(unique) + 2, "the configuration, the attestation"


def test_the_artifact_is_a_modelpack(package: Path, port: int) -> None:
    """By the JSON Schema of its configuration, and the names of its specification."""
    api.push(package, registries.reference(port, "pack/model"), insecure=True)
    found = document(port, "pack/model")
    assert found["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert found["config"]["mediaType"] == "application/vnd.cncf.model.config.v1+json"
    assert "annotations" not in found
    place = f"http://127.0.0.1:{port}/v2/pack/model/blobs/{found['config']['digest']}"
    config = requests.get(place, timeout=300).json()
    schema = json.loads(SCHEMA.read_bytes())
    jsonschema.validators.validator_for(schema)(schema).validate(config)
    assert config["config"]["format"] == "onnx" and config["descriptor"] == {"name": "m"}
    assert config["modelfs"]["diffIds"] == [each["digest"] for each in found["layers"]]
    kinds = {each["annotations"][artifact.TITLE]: each["mediaType"] for each in found["layers"]}
    assert kinds["one/g/a_ctx.onnx"] == "application/vnd.cncf.model.weight.v1.raw"
    assert kinds["manifest.json"] == "application/vnd.cncf.model.weight.config.v1.raw"
    assert kinds["one/g/readme.txt"] == "application/vnd.cncf.model.doc.v1.raw"


def test_a_foreign_client_pulls_it_byte_for_byte(package: Path, port: int, tmp_path: Path) -> None:
    api.push(package, registries.reference(port, "foreign/pulls"), insecure=True)
    client = oras.client.OrasClient(hostname=f"127.0.0.1:{port}", insecure=True)
    client.pull(target=f"127.0.0.1:{port}/foreign/pulls:v1", outdir=str(tmp_path))
    assert content(tmp_path) == content(package)


def test_what_a_foreign_client_pushes_is_pulled(
    package: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package)
    client = oras.client.OrasClient(hostname=f"127.0.0.1:{port}", insecure=True)
    names = sorted(tree(package))
    (tmp_path / "told").write_text(json.dumps({name: {artifact.PATH: name} for name in names}))
    client.push(
        target=f"127.0.0.1:{port}/foreign/pushes:v1",
        files=[f"{name}:application/vnd.cncf.model.weight.v1.raw" for name in names],
        annotation_file=str(tmp_path / "told"),
    )
    report = api.pull(registries.reference(port, "foreign/pushes"), tmp_path / "got", insecure=True)
    assert report.state == "pulled" and content(tmp_path / "got") == content(package)


def test_a_signature_goes_with_it_and_comes_back(package: Path, port: int, tmp_path: Path) -> None:
    """It is no file of the package: the artifact is the same with it and without."""
    folder = tmp_path / "signed.ortpackage"
    shutil.copytree(package, folder)
    name = registries.reference(port, "signed/model")
    first = api.push(folder, name, insecure=True)
    keys = {signer: write_key(tmp_path, signer) for signer in ("one", "another")}
    for signer, (private, _) in keys.items():
        api.sign(folder, key=private)
        again = api.push(folder, name, insecure=True)
        assert (again.digest, again.state) == (first.digest, "pushed")
        assert again.attached == ("model.sig",)
        target = tmp_path / signer
        assert api.pull(name, target, insecure=True).attached == ("model.sig",)
        assert content(target) == content(folder)
        for other, (_, public) in keys.items():
            options = ["--insecure", "--trusted-key", str(public)]
            verified = inside("verify", name, *options, cwd=tmp_path)
            assert verified.returncode == (0 if other == signer else 7), verified.stdout
    listed = document_of_index(port, "signed/model", first.digest)
    assert [each["artifactType"] for each in listed] == [artifact.SIGNATURE]
    assert api.pull(name, tmp_path / "another", insecure=True).state == "up to date"


def document_of_index(port: int, repository: str, content: str) -> list[dict[str, Any]]:
    place = f"http://127.0.0.1:{port}/v2/{repository}/manifests/{content.replace(':', '-')}"
    answer = requests.get(place, headers={"Accept": artifact.INDEX}, timeout=300)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["manifests"]
    return found


def test_a_tag_that_moved_is_told_by_the_digest(
    project: Project, package: Path, port: int, tmp_path: Path
) -> None:
    name = registries.reference(port, "moved/model")
    first = api.push(package, name, insecure=True)
    other = api.push(project.folder / "dist" / "m", name, insecure=True)
    assert first.digest != other.digest
    by_digest = api.pull(f"{name}@{first.digest}", tmp_path / "got", insecure=True)
    assert by_digest.digest == first.digest and content(tmp_path / "got") == content(package)
    with pytest.raises(VerificationError, match="does not match the package"):
        api.push(package, f"{name}@{other.digest}", insecure=True)
    report = api.verify(name, lock=project.lock, insecure=True)
    assert report.passed


def test_whoever_is_logged_in_gets_a_token(
    package: Path, port: int, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else does; and no message has the password or the token."""
    proxy.begin(Fault(name="", before=registries.guarded(), of=ALL))
    name = registries.reference(proxy.server_port, "some/model")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(StorageError, match="401") as error:
        api.push(package, name, insecure=True)
    registries.login(tmp_path, f"127.0.0.1:{proxy.server_port}")
    assert api.push(package, name, insecure=True).state == "pushed"
    assert api.pull(name, tmp_path / "got", insecure=True).state == "pulled"
    proxy.begin(Fault(name="", before=registries.guarded("http://127.0.0.1:9/token"), of=ALL))
    with pytest.raises(StorageError, match="an unsafe address for tokens") as other:
        api.push(package, name, insecure=True)
    proxy.begin(None)
    for told in (str(error.value), str(other.value)):
        assert not any(secret in told for secret in registries.SECRETS)


def test_credentials_go_to_no_other_host(
    package: Path, port: int, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that keeps its blobs elsewhere sends there, and the token stays."""
    proxy.begin(None)
    name = registries.reference(proxy.server_port, "some/model")
    api.push(package, name, insecure=True)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    registries.login(tmp_path, f"127.0.0.1:{proxy.server_port}")
    seen: list[str | None] = []
    with proxies.before(port) as elsewhere:

        def note(handler: proxies.Handler) -> None:
            seen.append(handler.headers.get("Authorization"))
            handler.tell(handler.ask())

        guard = registries.guarded()

        def sends_on(handler: proxies.Handler) -> None:
            if "/blobs/sha256:" in handler.path and "Authorization" in handler.headers:
                there = f"http://127.0.0.1:{elsewhere.server_port}{handler.path}"
                handler.tell(proxies.Answer(307, [("Location", there)], b"", 0))
            else:
                guard(handler)

        elsewhere.begin(Fault(name="", before=note, of=ALL))
        proxy.begin(Fault(name="", before=sends_on, of=ALL))
        assert api.pull(name, tmp_path / "got", insecure=True).state == "pulled"
        proxy.begin(None)
    assert seen and set(seen) == {None}
    assert content(tmp_path / "got") == content(package)


def test_what_was_changed_is_not_pushed(package: Path, port: int, tmp_path: Path) -> None:
    folder = tmp_path / "m.ortpackage"
    shutil.copytree(package, folder)
    name = registries.reference(port, "changed/model")
    (folder / "more").write_bytes(b"")
    with pytest.raises(VerificationError, match="is not listed in any SHA256SUMS"):
        api.push(folder, name, insecure=True)
    (folder / "more").unlink()
    projects.flip(folder / "one" / "g" / "a_ctx.onnx")
    with pytest.raises(VerificationError, match="was changed"):
        api.push(folder, name, insecure=True)
    with pytest.raises(UsageError, match="is neither a package"):
        api.push(tmp_path / "m.ortpackage" / "shared_assets", name, insecure=True)
    with pytest.raises(StorageError, match="of that name"):
        api.pull(name, tmp_path / "got", insecure=True)


def test_an_attestation_of_another_package_is_not_pushed(
    project: Project, package: Path, port: int, tmp_path: Path
) -> None:
    shutil.copytree(package, tmp_path / "m.ortpackage")
    statement = json.loads((project.folder / "dist" / "m.intoto.json").read_bytes())
    statement["subject"] = statement["subject"][2:]
    (tmp_path / "m.intoto.json").write_text(json.dumps(statement))
    name = registries.reference(port, "other/model")
    with pytest.raises(VerificationError, match="does not name this package"):
        api.push(tmp_path / "m.ortpackage", name, insecure=True)


@pytest.mark.parametrize("what", ["other files", "a file", "another attestation"])
def test_nothing_that_is_there_is_replaced(
    package: Path, port: int, tmp_path: Path, what: str
) -> None:
    name, target = registries.reference(port, "whole/model"), tmp_path / "m.ortpackage"
    api.push(package, name, insecure=True)
    if what == "other files":
        target.mkdir()
        (target / "mine").write_text("mine")
    elif what == "a file":
        target.write_text("mine")
    else:
        (tmp_path / "m.intoto.json").write_text("mine")
    before = content(tmp_path)
    with pytest.raises(UsageError, match=r"already exists, and is not what|is a file"):
        api.pull(name, target, insecure=True)
    assert content(tmp_path) == before
