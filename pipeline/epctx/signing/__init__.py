"""Signatures: DSSE, keys, and folders signed by OpenSSF Model Signing.

`cryptography` comes with an extra, so it is imported only where a key is used.
"""
