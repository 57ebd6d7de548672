"""The intake: accepts GitHub's webhook deliveries and answers only once they are durable."""
