"""From a round report to what stands on the pull request: first what is to stand, then bringing it about."""
