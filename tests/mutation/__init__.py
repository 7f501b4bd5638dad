"""Whether verification finds what is wrong: models with one fault each, of a known effect."""
