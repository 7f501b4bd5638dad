"""OpenVINO's properties, `load_config`: refused where the plugin would ignore them in silence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from epctx.error_codes import Code
from epctx.errors import ManifestError


def config_of(inline: str | None, file: str | None) -> Mapping[str, Mapping[str, object]]:
    """The properties by device, out of JSON text or a JSON file; none without either.

    Raises:
        ManifestError: both are given; the file cannot be read; it is no object of objects.
    """
    if inline is not None and file is not None:
        raise ManifestError(
            "load_config and load_config_file are both given",
            remedy="leave one of them out",
            code=Code.OPTIONS_DISAGREE,
        )
    if file is not None:
        try:
            inline = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(
                f"load_config_file {file} cannot be read",
                why=str(error),
                remedy="write the path of a JSON file",
                code=Code.WRONG_OPTION_VALUE,
            ) from error
    if inline is None:
        return {}
    where = "load_config" if file is None else f"load_config_file {file}"
    try:
        config = json.loads(inline)
    except (ValueError, RecursionError) as error:
        raise _bad_config(where, str(error)) from error
    if not isinstance(config, dict) or not all(isinstance(v, dict) for v in config.values()):
        raise _bad_config(where, "it is no object of objects")
    return config


def properties_of(config: Mapping[str, Mapping[str, object]], device: str) -> Mapping[str, object]:
    """The device's own properties.

    Raises:
        ManifestError: there are some that OpenVINO would ignore, or that epctx must decide.
    """
    kind = device.partition(".")[0]
    for name, properties in config.items():
        if name not in (kind, device):
            raise ManifestError(
                f"load_config has properties of {name}, but device_type is {device}",
                why="OpenVINO ignores the properties of other devices",
                remedy=f"put them under {device}, or set device_type: {name}",
                code=Code.OPTIONS_DISAGREE,
            )
        if "CACHE_DIR" in properties:
            raise ManifestError(
                "load_config sets CACHE_DIR",
                why="epctx has its own cache; OpenVINO's would decide what the build is",
                remedy="leave CACHE_DIR out",
                code=Code.OWNED_SETTING,
            )
    return {**config.get(kind, {}), **config.get(device, {})}


def _bad_config(where: str, why: str) -> ManifestError:
    return ManifestError(
        f"{where} is no configuration of OpenVINO",
        why=why,
        remedy='write JSON like {"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}',
    )
