"""What every package uses and the standard library lacks: files, text, locks, errors. Imports only the standard library."""
