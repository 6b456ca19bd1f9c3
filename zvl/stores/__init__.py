"""Where files lie: one module a kind of store; `zvl.storage.store_for` picks one."""
