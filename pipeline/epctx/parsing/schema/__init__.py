"""The JSON Schemas: find, print, apply and explain them."""
