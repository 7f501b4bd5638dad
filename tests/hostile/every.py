"""All rows: importing this registers them."""

from tests.hostile import broken_models, external_data, manifests
from tests.hostile.table import ROWS, Row

__all__ = ["ALL", "broken_models", "external_data", "manifests"]

ALL: tuple[Row, ...] = tuple(ROWS.values())
