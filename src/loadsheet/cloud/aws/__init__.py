"""An account of Amazon, looked at and never changed: `session.Account` is the only way to it."""
