"""What is asked: the types of bodies, their checks, and what an engine gets of them."""
