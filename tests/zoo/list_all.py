"""Print every recipe: its name, its source, whether it needs exporters; a line each, with tabs.

python -m tests.zoo.list_all
"""

from tests.zoo.recipes import all_recipes

if __name__ == "__main__":
    for recipe in all_recipes().values():
        print(recipe.name, recipe.source, int(recipe.needs_exporters), sep="\t")
