"""`python -m runtime smoke`: requests through the engine's public interface, compared with kept answers."""
