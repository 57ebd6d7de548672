"""The demo: a sample pull request, reviewed in two rounds without network or model."""
