"""The code blocks of docs/ and README.md, and how each kind of them is run: see `pages.run`."""
