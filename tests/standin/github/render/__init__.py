"""State as GitHub's JSON."""
