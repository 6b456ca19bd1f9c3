"""Servers on loopback that tests read from: files with ranges, a small hub, a proxy; any of them with faults."""
