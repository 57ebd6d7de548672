"""Waking workers: Celery over Redis or Valkey. The queue carries wake-ups, never work."""
