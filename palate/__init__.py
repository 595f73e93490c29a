"""palate: learn a model's behaviour from what its users say and do."""

__version__ = "0.1.0"
