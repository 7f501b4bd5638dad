"""The reference EP."""
