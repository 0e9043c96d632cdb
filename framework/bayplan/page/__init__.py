"""The page that shows a cluster: what is where, why a job waits, what would help, and over time.

The same page is a file that opens from disk (:mod:`.document`) and a site that a running scheduler
serves (:mod:`.feed`). Both show the rows of :class:`.cluster_view.ClusterView`.
"""
