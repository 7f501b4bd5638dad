"""What is released beside the groups' folders: an archive of all, and an attestation of it."""
