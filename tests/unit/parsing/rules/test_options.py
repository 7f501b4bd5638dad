"""Provider options: converted, checked, their labels."""

import json
from pathlib import Path
from typing import Any

import pytest

from epctx.parsing.document import build
from epctx.parsing.document.tree import Node, Plain
from epctx.parsing.rules import options
from epctx.parsing.rules.settings import Places
from epctx.parsing.schema import providers

PROPERTIES: dict[str, Any] = {
    "soc": {"type": ["string", "integer"], "pattern": "^[0-9]{1,3}$",
            "x-epctx": {"expects": "a chip number"}, "description": "."},
    "ratio": {"type": ["number", "string"], "maximum": 1, "description": "."},
    "size": {"type": ["integer", "string"], "minimum": 1, "maximum": 64, "description": "."},
    "flag": {"$ref": "#/$defs/flag", "description": "."},
    "text": {"type": "string", "description": "."},
    "mode": {"type": ["string", "boolean"], "enum": ["on", "off"], "description": "."},
    "chip": {"type": ["string", "array"], "items": {"type": "string"}, "description": ".",
             "x-epctx": {
                 "choices": {"Acme X Elite": "ax1", "Acme 8 Elite": "a8", "Acme 888": "a7"}}},
    "ops": {"type": "array", "items": {"type": "string"}, "description": "."},
    "file": {"type": "string", "format": "path", "description": "."},
    "key": {"type": "string", "default": "acme", "description": "."},
}  # fmt: skip
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": PROPERTIES,
    "additionalProperties": False,
    "$defs": {"flag": {"type": ["boolean", "integer", "string"],
                       "enum": [True, False, 0, 1, "0", "1", "true", "false"]}},
    "x-epctx": {"provider": "AcmeExecutionProvider", "label": "{key}", "can_share": False,
                "owned": {"dump": "files are epctx's", "old": "it is gone; write size"}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    """AcmeExecutionProvider has the schema above; others have none."""
    parsed = providers._parse(json.dumps(SCHEMA), "AcmeExecutionProvider", "here")
    monkeypatch.setattr(
        providers, "find", lambda name: parsed if name == "AcmeExecutionProvider" else None
    )


def entry(text: str, *, allow: bool = False, provider: str = "AcmeExecutionProvider") -> Node:
    lines = [f"provider: {provider}", f"options: {{{text}}}"]
    lines += ["allow_unknown_options: true"] if allow else []
    return build.build("\n".join(lines), file="m.yaml").root


def told(node: Node, folder: Path = Path("/x")) -> list[tuple[str, str]]:
    return [(p.what, p.remedy) for p in options.check(node, Places(folder=folder))]


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("soc: 60", "60"),
        ('soc: "60"', "60"),
        ("soc: 060", "060"),
        ("ratio: 0.5", 0.5),
        ('ratio: "0.5"', 0.5),
        ("ratio: 1", 1),
        ("size: 8", 8),
        ('size: "8"', 8),
        ("flag: true", True),
        ("flag: 1", True),
        ("flag: 0", False),
        ('flag: "1"', True),
        ('flag: "false"', False),
        ("mode: on", "on"),
        ("text: abc", "abc"),
        ("ops: [MatMul, Add]", ["MatMul", "Add"]),
        ("chip: Acme X Elite", "ax1"),
        ("chip: acme x elite", "ax1"),
        ("chip: x elite", "ax1"),
        ("chip: [8 Elite, ax1]", ["a8", "ax1"]),
        ("chip: elite", "elite"),
        ('chip: "888"', "888"),
    ],
)
def test_what_the_manifest_writes_and_the_ep_is_given(written: str, given: Plain) -> None:
    node = entry(written)
    assert told(node) == []
    name = written.partition(":")[0]
    value = options.converted(node).mapping[name].plain()
    assert value == given and type(value) is type(given)


@pytest.mark.parametrize(
    ("written", "what", "remedy"),
    [
        ("soc: 6000", "is 6000, must be a chip number", "write a chip number"),
        ("soc: 6.5", "is 6.5, must be a chip number", "write a chip number"),
        ("soc: true", "is true, must be a chip number", "write a chip number"),
        ("ratio: '2.5'", "is 2.5, must be at most 1", "write 1 or less"),
        ("ratio: half", 'is "half", must be a number', "write a number"),
        ("size: '99'", "is 99, must be at most 64", "write 64 or less"),
        ("size: big", 'is "big", must be a whole number', "write a whole number"),
        ("size: true", "is true, must be a whole number", "write a whole number"),
        ("flag: 2", "is 2, must be one of true, false, 0, 1", "write one of true, false, 0, 1"),
        ("flag: yes", 'is "yes", must be one of true, false, 0, 1', "write true"),
        ("text: 5", "is 5, must be text", 'put it in quotes: "5"'),
        ("text: [a]", "is a list, must be text", "write text"),
        ("ops: MatMul", 'is "MatMul", must be a list', "write a list: [MatMul]"),
        ("mode: true", "is true, must be one of on, off", "write one of on, off"),
        ("txt: a", "unknown option", 'did you mean "text"?'),
        ("dump: a", "is refused: files are epctx's", "remove it"),
        ("old: a", "is refused: it is gone", "write size"),
        ("file: ../a", "leads out of the manifest's folder",
         "keep it inside the manifest's folder"),
    ],
)  # fmt: skip
def test_what_is_wrong(written: str, what: str, remedy: str) -> None:
    assert told(entry(written)) == [(what, remedy)]


def test_an_unknown_option_that_is_like_none_says_where_they_are_listed() -> None:
    ((what, remedy),) = told(entry("zzz: 1"))
    assert what == "unknown option"
    assert remedy == "`epctx schema providers/AcmeExecutionProvider` lists the options"


def test_unknown_options_can_be_allowed_and_the_known_are_still_checked() -> None:
    assert told(entry("zzz: 1", allow=True)) == []
    assert [what for what, _ in told(entry("zzz: 1, size: 0, dump: 1", allow=True))] == [
        "is refused: files are epctx's",
        "is 0, must be at least 1",
    ]


def test_options_of_the_session_are_refused_for_every_ep() -> None:
    for provider in ("AcmeExecutionProvider", "OtherExecutionProvider"):
        ((what, _),) = told(entry("ep.context_enable: 1", allow=True, provider=provider))
        assert what.startswith("is refused: ")


def test_a_provider_without_a_schema_needs_permission() -> None:
    ((what, remedy),) = told(entry("a: 1", provider="OtherExecutionProvider"))
    assert what == 'provider "OtherExecutionProvider" has no option schema here'
    assert "install the package that brings it" in remedy
    allowed = entry("a: 1, b: true", allow=True, provider="OtherExecutionProvider")
    assert told(allowed) == []
    assert options.label(allowed) == "OtherExecutionProvider"
    assert providers.can_share(allowed)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("QNNExecutionProvder", "QNNExecutionProvider"),
        ("qnn", "QNNExecutionProvider"),
        ("OpenVino", "OpenVINOExecutionProvider"),
        ("OpenVINOExcutionProvider", "OpenVINOExecutionProvider"),
    ],
)
def test_a_misspelt_provider_is_recognized(
    name: str, near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ["QNNExecutionProvider", "OpenVINOExecutionProvider", "VitisAIExecutionProvider"]
    monkeypatch.setattr(providers, "known", lambda: known)
    ((what, remedy),) = told(entry("", provider=name))
    assert what == f'there is no provider "{name}"'
    assert remedy == f'did you mean "{near}"?'


def test_names_are_not_alike_by_what_they_all_end_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "known", lambda: ["QNNExecutionProvider"])
    ((what, _),) = told(entry("", provider="AcmeXExecutionProvider"))
    assert "has no option schema" in what


def test_the_default_ep_is_not_listed() -> None:
    ((what, remedy),) = told(entry("", provider="CPUExecutionProvider", allow=True))
    assert "is the default EP" in what
    assert "execution_providers: []" in remedy


def test_the_label_follows_its_option() -> None:
    assert options.label(entry("")) == "acme"
    assert options.label(entry("key: npu")) == "npu"
    assert options.label(entry("key: null")) == "acme"
    assert options.label_options(entry("")) == ("key",)
    assert not providers.can_share(entry(""))


def test_null_takes_an_option_away() -> None:
    assert options.converted(entry("soc: null, size: 1")).plain() == {"size": 1}


def test_paths_are_named(tmp_path: Path) -> None:
    node = entry("file: data/a.json, text: b")
    assert told(node, tmp_path) == []
    assert list(options.path_options(node)) == ["file"]


def test_an_entry_without_options_has_none() -> None:
    node = build.build("provider: AcmeExecutionProvider", file="m.yaml").root
    assert told(node) == []
    assert options.converted(node).plain() == {}
