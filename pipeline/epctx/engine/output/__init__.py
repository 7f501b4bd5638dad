"""Output folder: publication, record, archive and attestation."""
