"""GitHub's operations; importing a module registers its routes."""
