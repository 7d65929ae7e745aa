"""Training: from sentence pairs to a MODEL directory."""
