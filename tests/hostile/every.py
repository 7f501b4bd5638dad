"""All rows: importing this registers them."""

from tests.hostile import (
    bombs,
    broken_artifacts,
    broken_models,
    caches,
    compositions,
    devices,
    documents,
    external_data,
    folders,
    manifests,
    options,
    releases,
    remote,
    reports,
)
from tests.hostile.table import ROWS, Row

__all__ = [
    "ALL",
    "bombs",
    "broken_artifacts",
    "broken_models",
    "caches",
    "compositions",
    "devices",
    "documents",
    "external_data",
    "folders",
    "manifests",
    "options",
    "releases",
    "remote",
    "reports",
]

ALL: tuple[Row, ...] = tuple(ROWS.values())
