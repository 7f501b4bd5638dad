"""All rows: importing this registers them."""

from tests.hostile import broken_artifacts, broken_models, external_data, manifests
from tests.hostile.table import ROWS, Row

__all__ = ["ALL", "broken_artifacts", "broken_models", "external_data", "manifests"]

ALL: tuple[Row, ...] = tuple(ROWS.values())
