"""How the back office writes dates: Django looks here for a module of the language."""
