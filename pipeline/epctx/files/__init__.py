"""Files: open, digest, copy, replace and list them so that the checked content is used."""
