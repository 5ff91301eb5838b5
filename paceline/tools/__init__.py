"""What surrounds training: estimates, measurements, comparisons, reports, MLPerf's logs, other systems' settings."""
