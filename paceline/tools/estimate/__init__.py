"""What a run will take, before it starts: times from measured or published speeds, and their summary."""
