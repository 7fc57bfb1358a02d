"""What `bench/chaos.py` and the test of the same name need: processes to hurt, ways to hurt them, checks afterwards."""
