"""What reviews check, as data: one YAML file per checklist."""
