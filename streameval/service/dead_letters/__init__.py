"""Dead letters: rejected messages, kept in a file or a topic."""
