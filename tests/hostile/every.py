"""All rows: importing this registers them."""

from tests.hostile import broken_models
from tests.hostile.table import ROWS, Row

__all__ = ["ALL", "broken_models"]

ALL: tuple[Row, ...] = tuple(ROWS.values())
