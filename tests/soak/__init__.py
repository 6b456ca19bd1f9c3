"""Long runs and sudden deaths: see docs/soak.md. `python -m soak` with `tests` on the path runs all of it.

- `steady`: memory, threads, descriptors, processes and /dev/shm over thousands of batches and dozens of loaders.
- `kills`: a worker, the loader's process, the trainer, a rank killed at random moments; the batches stay the same.
- `verified`: `zvl verify` while processes of it are killed.
"""
