"""Requests to other machines that end in time and are tried again."""
