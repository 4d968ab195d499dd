"""What a server shows of itself, in a terminal."""
