"""What workers do once they are woken: deliveries into intents, intents into rounds and answers, rounds into posts."""
