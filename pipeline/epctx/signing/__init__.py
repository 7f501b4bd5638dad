"""Signatures: DSSE, keys, and folders signed as OpenSSF Model Signing says.

`cryptography` is imported where a key is used, and nowhere else: it comes with an extra.
"""
