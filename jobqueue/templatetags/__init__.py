"""Tags for pages that are not ours to render."""
