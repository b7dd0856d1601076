"""On which replica does a request run, of those that have room?"""
