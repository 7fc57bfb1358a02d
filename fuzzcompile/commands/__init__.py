"""What a command does apart from the terminal."""
