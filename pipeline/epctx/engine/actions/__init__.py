"""The actions of a build: each found in the cache, or carried out and put there."""
