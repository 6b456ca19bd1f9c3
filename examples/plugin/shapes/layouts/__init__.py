"""Every module here is one of zvl's layouts, by its file's name."""
