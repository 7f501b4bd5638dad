"""What a model must be before anything is done with it."""
