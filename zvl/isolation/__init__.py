"""A loader's engine in a process of its own.

::

    trainer's process                                  loader's process
    IsolatedLoader (state, ledger, end of the run)     server: Loader._open() -> Engine, runner, I/O threads
      Remote.take() <--- events, in order ------------   each event pickled once, for every peer
                    ---- what was taken, let go of -->   arrays in shared memory, handed over by place

What cuts the two is `zvl.events.Events`: everything that belongs to a rank (its state, the ledger, the agreed end,
`max_steps`) stays with the trainer, in the same code as without isolation; so a loader process that dies can be
replaced from the state of the batch last yielded, and several trainers can read one engine's events.
"""
