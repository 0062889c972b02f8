"""Files to global arrays and back: each process reads and writes only its own bytes."""
