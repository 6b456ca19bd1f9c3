"""Every module here is one of zvl's codecs, by its file's name."""
