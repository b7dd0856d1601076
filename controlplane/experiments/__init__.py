"""Experiments on a live instance of its own: started, set up, driven over HTTP and ended again.

``pools.py`` says what the experiments of the token-pools paper are, ``instance.py`` starts the instance, ``clients.py``
drives it as paced clients would, ``figures.py`` counts. ``manage.py experiment NAME`` runs one.
"""
