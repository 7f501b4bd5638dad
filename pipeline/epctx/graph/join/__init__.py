"""Several EPContext models joined into one."""
