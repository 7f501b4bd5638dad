"""Worker processes: the jobs they carry out, and both sides of the pipe (design section 3).

`__main__` is the worker itself; `process` and `pool` are what the runner has of it.
"""
