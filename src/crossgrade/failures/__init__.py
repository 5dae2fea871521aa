"""What went wrong, from what a tool printed: signatures from `knowledge/failures.yml`, matched and filled in."""
