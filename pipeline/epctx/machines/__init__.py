"""Other machines: jobs carried out by workers of a `dask.distributed` cluster.

A room above `engine`, which so cannot know it: `commands` gives it to a build, as an `Executor`. On
the other side it drives the processes of `worker`, as a build does on its own machine.
"""
