"""`python -m max_weights`: the command line, where the script `max-weights` is not on the path."""

from max_weights.cli import main

main()
