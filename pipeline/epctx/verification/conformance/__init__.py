"""Conformance: what the files of a group must be; no run is needed."""
