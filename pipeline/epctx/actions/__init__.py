"""Actions of a build: each has its request, its result and its code in one file.

`action` has what all of them share, and `kinds` lists them.
"""
