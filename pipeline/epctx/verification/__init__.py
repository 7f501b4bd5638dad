"""The policies of verification: what a group folder must be, one module each (design section 7)."""
