"""Lock of a build: how it is written, checked and compared."""
