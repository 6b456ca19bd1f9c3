"""Every module here is one of zvl's operators, by its file's name."""
