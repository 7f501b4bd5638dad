"""Parse a YAML file into the manifest, or report all of its faults."""
