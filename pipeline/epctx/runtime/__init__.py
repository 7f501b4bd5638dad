"""Inference over EPContext models (design section 11)."""
