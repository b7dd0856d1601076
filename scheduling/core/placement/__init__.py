"""On which replica does a request run?"""
