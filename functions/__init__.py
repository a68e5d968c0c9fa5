"""The four functions that are deployed, one handler a file, and an example of a user's tasks."""
