"""Money: hours times a price that the user names."""
