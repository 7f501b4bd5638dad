"""A request as a manifest: names, option names and values are checked as everywhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from epctx.commands.compile_model.request import Request
from epctx.errors import InvalidManifest, ManifestError
from epctx.manifest import Manifest, ModelGroup, OptionValue
from epctx.parsing import load
from epctx.parsing.schema import providers

GROUP = "models"
NAME = "compile-model"


def group(requests: Sequence[Request], folder: Path) -> ModelGroup:
    """The model group of one session group, parsed.

    Args:
        requests: its sessions, in order; they agree in all but the model and its shapes.
        folder: gets the manifest, and sources from bytes.

    Raises as `parsed`.
    """
    return parsed(write(requests, folder)).targets[0].groups[0]


def parsed(path: Path) -> Manifest:
    """Parse a manifest that `write` wrote; what is wrong is told without its place in it.

    Raises:
        ManifestError: a name, an option or a value that is not allowed.
    """
    try:
        return load.load(path, allow_outside=True)
    except InvalidManifest as error:
        first = error.violations[0]
        raise ManifestError(
            "; ".join(v.what for v in error.violations),
            where=first.path.removeprefix("execution_providers.").removeprefix("models."),
            remedy=first.remedy,
            code=first.code,
        ) from error


def write(requests: Sequence[Request], folder: Path) -> Path:
    """Write the manifest of one session group into `folder`."""
    first, names = requests[0], [request.name for request in requests]
    aliases = [f"ep{i}" for i in range(len(first.providers))]
    described = {
        "schema_version": 1,
        "name": NAME,
        "models": {request.name: _model(request, folder) for request in requests},
        "execution_providers": {
            alias: _provider(name, options)
            for alias, (name, options) in zip(aliases, first.providers, strict=True)
        },
        "model_groups": {
            GROUP: {
                "models": names,
                "execution_providers": aliases,
                "embed_mode": first.config.embed_mode,
                "node_name_prefix": first.config.node_name_prefix,
                "optimize": {"level": _plain(first.optimize)},
                "partition": _partition(first),
                "session_options": dict(first.entries),
                **({"sharing_groups": {"shared": names}} if len(names) > 1 else {}),
                **_initializers(first),
            }
        },
    }
    path = folder / "manifest.yaml"  # JSON is YAML
    path.write_text(json.dumps(described, indent=1), encoding="utf-8")
    return path


def _model(request: Request, folder: Path) -> dict[str, object]:
    path = request.path
    described: dict[str, object] = {
        "dimensions": dict(request.dimensions),
        "shapes": {name: list(shape) for name, shape in request.shapes.items()},
    }
    if path is None:
        path = folder / f"{request.name}.onnx"
        path.write_bytes(request.data)
        described["external_data_dir"] = request.data_folder.as_posix()
    return {"path": path.as_posix(), **described}


def _provider(name: str, options: Mapping[str, OptionValue]) -> dict[str, object]:
    schema = providers.find(name)
    paths = () if schema is None else schema.properties.items()
    relative = {key for key, option in paths if option.get("format") == "path"}
    plain = {
        key: Path(str(value)).absolute().as_posix() if key in relative else _plain(value)
        for key, value in options.items()
    }
    return {"provider": name, "options": plain, "allow_unknown_options": schema is None}


def _partition(request: Request) -> dict[str, object]:
    asked = request.partition
    limits = {
        "require_coverage": asked.require_coverage,
        "max_partitions": asked.max_partitions,
    }
    return {
        "exclude": {"op_types": list(asked.exclude_op_types), "nodes": list(asked.exclude_nodes)},
        "min_nodes": asked.min_nodes,
        **{key: limit for key, limit in limits.items() if limit is not None},
    }


def _initializers(request: Request) -> dict[str, object]:
    file = request.config.initializers_file
    return {} if file is None else {"external_initializers": {"file": file, "size_threshold": 0}}


def _plain(value: OptionValue | Sequence[str]) -> object:
    return list(value) if isinstance(value, tuple | list) else value
