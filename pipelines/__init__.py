"""Streams and tables: files in, Delta tables and versioned datasets out.

`ingest` appends validated events, dead letters and the new read offsets to one Delta table in one commit;
`build` turns that table into a preference dataset named by its content; `ledger` proves that nothing got
lost. Import the module you need (`from pipelines.ingest import ingest`): this package imports nothing by
itself, so that a command line stays fast.
"""
