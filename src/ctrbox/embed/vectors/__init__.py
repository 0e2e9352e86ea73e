"""Vector files, and the embedders and searches that read them."""
