"""The JSON Schemas: found, printed, applied, explained."""
