"""The review as a pure domain: a diff, a checkout, a policy and a ledger in, a round report out."""
