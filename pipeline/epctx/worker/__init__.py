"""Worker processes: the jobs they carry out, and both sides of the pipe (design section 3).

`listener` is the worker; `process` and `pool` are what the engine has of it.
"""
