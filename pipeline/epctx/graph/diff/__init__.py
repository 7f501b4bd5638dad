"""What differs between two models, or two runs of bytes."""
