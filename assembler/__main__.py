"""``python -m assembler``: the same as the ``assembler`` command."""

from assembler.cli import main

if __name__ == "__main__":
    main()
