"""`python -m mayflymq`."""

from .cli import main

main()
