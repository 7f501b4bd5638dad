"""Rules for a manifest that JSON Schema cannot express."""
