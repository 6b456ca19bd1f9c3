"""This file makes pytest name the tests here `tests.test_...`: from the root they would be `codecs.tests.test_...`,
and pytest would put a package of that name over Python's own `codecs`. Keep the file names different from those in
the root's `tests/`.
"""
