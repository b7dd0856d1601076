"""What would have happened: modelled engines under recorded or made-up traffic."""
