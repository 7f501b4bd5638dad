"""Other machines: workers of a `dask.distributed` cluster run the jobs of a build.

`engine` does not import this package: `commands` passes it to a build as an `Executor`. On the
other machines it drives the processes of `worker`, as a build does on its own machine.
"""
