"""Long campaigns, as commands that print their numbers; ``tests/faults`` runs a short form of each."""
