"""Virtual GPUs as HAMi and Volcano give them: which GPU a container gets, and why none."""
