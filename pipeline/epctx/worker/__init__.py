"""Worker processes, and both sides of their pipe (design section 3).

`listener` runs in the worker; `process` and `pool` run in the engine.
"""
