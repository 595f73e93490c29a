"""Which model serves: registry, recorded decisions, promotion and rollback."""
