"""Files: opened, digested, copied, replaced and listed so that what is checked is what is used."""
