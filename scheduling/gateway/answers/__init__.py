"""What the client gets: answers and errors in the format of each API."""
