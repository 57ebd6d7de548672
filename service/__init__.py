"""The shell: everything that touches the outside world (command line, files, later HTTP, queue, database, GitHub)."""
