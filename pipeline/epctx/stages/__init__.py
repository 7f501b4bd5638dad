"""Stages of the pipeline (design section 7), a module each; `compile` dumps, too."""
