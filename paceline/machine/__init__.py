"""What a machine should reach, and what it lacks: estimates, rates, the doctor."""
