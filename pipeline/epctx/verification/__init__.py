"""The policies of verification: requirements on a group folder (design section 7)."""
