"""A plugin of zvl in one page: one module each in four packages."""
