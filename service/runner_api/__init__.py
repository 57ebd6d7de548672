"""The runners' API: hosts come, claim jobs, and report. A router of the web process; see `ci_dispatch.protocol`."""
