"""Why a pod or a job is pending, and what would help."""
