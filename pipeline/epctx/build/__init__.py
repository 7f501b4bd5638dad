"""What a build does, action by action: each is one file, with its request, its result and its code.

`action` is what all of them share; `actions` has one module for each.
"""
