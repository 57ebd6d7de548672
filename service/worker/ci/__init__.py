"""CI on the worker's side: the gate, the start of jobs, their verdicts, and what is shown of them."""
