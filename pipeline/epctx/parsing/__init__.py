"""Parsing of a YAML file into the manifest, or into all of its faults."""
