"""Every module here is one of zvl's formats, by its file's name."""
