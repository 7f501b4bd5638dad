"""Make one model of the zoo, in the environment that has the exporters.

python -m tests.zoo.make_one NAME FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.zoo.recipes import all_recipes

if __name__ == "__main__":
    all_recipes()[sys.argv[1]].make(Path(sys.argv[2]))
