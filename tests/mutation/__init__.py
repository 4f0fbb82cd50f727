"""How many seeded faults the tests notice."""
