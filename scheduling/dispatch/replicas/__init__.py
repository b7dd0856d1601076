"""What a pool's leader knows of its replicas, does with them and says of them. ``monitor.py`` puts it together."""
