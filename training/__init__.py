"""Policy updates: one file per method, each starting from the living champion's adapter."""
