"""Batch scripts for Slurm as jobs for Kubernetes."""

from bayplan.submission.jobs import KINDS_OF_JOBS, objects_of
from bayplan.submission.sbatch import OPTIONS, Batch, Option, read_batch, read_script

__all__ = [
    "KINDS_OF_JOBS",
    "OPTIONS",
    "Batch",
    "Option",
    "objects_of",
    "read_batch",
    "read_script",
]
