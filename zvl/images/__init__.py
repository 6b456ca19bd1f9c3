"""Pictures: headers, guards, orientation, the choice of codec, resizing. No heavy import before first use."""
