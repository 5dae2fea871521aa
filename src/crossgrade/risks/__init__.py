"""Risks of a playbook that can be seen without running it: `crossgrade lint`. Pure."""
