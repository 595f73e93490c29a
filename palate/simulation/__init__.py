"""Simulated users for the demo and the benchmarks. Everything they touch is labelled `simulated`."""
