"""Before, during and after renting: checks, notices, rehearsal, watch, left-overs, job files."""
