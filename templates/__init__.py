"""Every text that a person or a model reads, as Jinja2 templates."""
