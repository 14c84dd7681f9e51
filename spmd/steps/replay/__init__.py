"""A function recorded once, as the programs that it runs, and then replayed behind guards:
`spmd.compile`."""
