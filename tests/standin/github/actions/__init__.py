"""What can happen on GitHub. The HTTP routes and the tests' own words both end here, so both emit the same webhooks."""
