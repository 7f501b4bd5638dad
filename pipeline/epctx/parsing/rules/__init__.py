"""What JSON Schema cannot say of a manifest."""
