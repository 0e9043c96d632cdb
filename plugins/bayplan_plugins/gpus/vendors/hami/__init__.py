"""Virtual GPUs as HAMi and Volcano give them: which GPU a container gets, and why none.

:mod:`.adapter` chooses for a pod, :mod:`.containers` for each of its containers, in the
order of :mod:`.order`, among the GPUs that :mod:`.fit` lets pass.
"""
