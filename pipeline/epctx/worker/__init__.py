"""Worker processes: the jobs they carry out, and both sides of the pipe (design section 3).

`__main__` and `executing` are the worker; `process` and `pool` are what the runner has of it.
"""
