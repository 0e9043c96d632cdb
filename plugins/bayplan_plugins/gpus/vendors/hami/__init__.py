"""Virtual GPUs as HAMi and Volcano give them: which card a container gets, and why none."""
