"""`python -m runtime smoke`: requests through the engine's server, compared with kept answers."""
