"""Methods of users: how they are registered, plug-in files, and which of these files the user has trusted."""
