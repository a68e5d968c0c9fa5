"""`python -m mayflymq.cli`."""

from . import main

main()
