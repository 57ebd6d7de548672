"""The repository as a review sees it: hardened git, snapshots, and both sides of a pull request."""
