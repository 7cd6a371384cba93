"""Who may use the server: users and their rights, and signing in."""
