"""Where pull requests live: GitHub, or a local repository."""
