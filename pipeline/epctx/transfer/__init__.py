"""Requests to other machines, with time limits and retries."""
