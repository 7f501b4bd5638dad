"""From a YAML file to the manifest, or to everything that is wrong with it."""
