"""Where bytes are stored: folders, buckets and servers, and copies of them near the process."""
