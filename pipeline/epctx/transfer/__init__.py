"""What comes from other machines and goes there: requests that end in time, tried again."""
