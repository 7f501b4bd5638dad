"""A build: planned, scheduled, carried out by workers, published."""
