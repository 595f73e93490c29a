"""Candidate against champion: metrics with intervals, gates, and one report that a person can read.

Everything here but the MLflow logging is a pure function of its arguments: the same rows and the same seed
give the same numbers, the same verdicts and the same report.
"""
