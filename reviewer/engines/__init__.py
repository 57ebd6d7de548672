"""Who answers a review prompt: an OpenAI-compatible endpoint, a recording, or nobody."""
