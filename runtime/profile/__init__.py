"""Where a decode step's time goes: the host's parts, the GPU's idle time between replays, what each step launches."""
