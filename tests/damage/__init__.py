"""Damaged pictures for tests: broken files, headers that lie, seeded mutations, a process that survives them."""
