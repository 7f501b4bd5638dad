"""The six stages of the pipeline, one module each with one public `run` (design section 7)."""
