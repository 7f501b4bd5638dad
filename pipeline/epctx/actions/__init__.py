"""The actions of a build: each is one file, with its request, its result and its code.

`action` is what all of them share, and `kinds` lists them; those that run models are in `numbers`
until they have one runner.
"""
