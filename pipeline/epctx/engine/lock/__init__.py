"""What a build and its lock file owe each other."""
