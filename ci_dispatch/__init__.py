"""The CI domain: gate, job plan, lease, execution, comparison. Imports nothing of the other rooms."""
