"""NVIDIA's MIG: the profiles of each GPU that can be divided, and how they are named.

The placements of the A100, H100 and A30 are those that nvidia-smi lists; those of newer GPUs
follow from the same layout of slices. Where a GPU's memory or multiprocessors for a profile are
not published, they are in proportion to its slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec

from bayplan.api.gpu_shares import MEBIBYTE, WHOLE, PartitionProfile

__all__ = ["MigGpu", "MigProfile", "mig_gpu", "mig_gpus", "resource_name"]


class MigProfile(msgspec.Struct, frozen=True):
    """A profile of MIG.

    ``id`` is NVIDIA's number of the kind of GPU instance. ``engines`` are what it has of the GPU's
    engines, by the names that devices use, such as ``copy-engines``.
    """

    id: int
    partition: PartitionProfile
    multiprocessors: int
    engines: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """Its name, such as ``1g.10gb+me``."""
        return self.partition.name

    @property
    def media(self) -> bool:
        """Whether it has the engines for JPEG and optical flow, which only one partition can."""
        return dict(self.engines).get("ofa-engines", 0) > 0


class MigGpu(msgspec.Struct, frozen=True):
    """A GPU that can be divided: its name here, its slices, and its profiles, smallest first."""

    name: str
    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]

    @property
    def partitions(self) -> tuple[PartitionProfile, ...]:
        """The profiles as any contract sees them."""
        return tuple(one.partition for one in self.profiles)

    @property
    def whole(self) -> MigProfile:
        """The profile that takes the whole GPU."""
        return self.profiles[-1]


class _Kind(msgspec.Struct, frozen=True):
    """A kind of profile, the same on all GPUs of a layout."""

    id: int
    slices: int
    starts: tuple[int, ...]
    size: int
    media: bool = False


_SEVEN = {
    "1g": _Kind(19, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g+me": _Kind(20, 1, (0, 1, 2, 3, 4, 5, 6), 1, media=True),
    "1g double": _Kind(15, 1, (0, 2, 4, 6), 2),
    "2g": _Kind(14, 2, (0, 2, 4), 2),
    "3g": _Kind(9, 3, (0, 4), 4),
    "4g": _Kind(5, 4, (0,), 4),
    "7g": _Kind(0, 7, (0,), 8),
}
_FOUR = {
    "1g": _Kind(14, 1, (0, 1, 2, 3), 1),
    "1g+me": _Kind(21, 1, (0, 1, 2, 3), 1, media=True),
    "2g": _Kind(5, 2, (0, 2), 2),
    "2g+me": _Kind(6, 2, (0, 2), 2, media=True),
    "4g": _Kind(0, 4, (0,), 4),
}

_Row = tuple[str, str, float, int]
"""A profile's kind, the part of its name after the dot, its memory in GiB, and its SMs."""


def _of_gib(rows: tuple[tuple[str, str, int, int], ...]) -> tuple[_Row, ...]:
    return tuple((kind, name, mib / 1024, sms) for kind, name, mib, sms in rows)


_TABLES: dict[str, tuple[tuple[str, ...], tuple[float, float], tuple[_Row, ...]]] = {
    "A100-40": (
        ("A100", "A800"),
        (0, 60),
        _of_gib(
            (
                ("1g", "5gb", 4864, 14),
                ("1g+me", "5gb+me", 4864, 14),
                ("1g double", "10gb", 9856, 14),
                ("2g", "10gb", 9856, 28),
                ("3g", "20gb", 19968, 42),
                ("4g", "20gb", 19968, 56),
                ("7g", "40gb", 40192, 98),
            )
        ),
    ),
    "A100-80": (
        ("A100", "A800"),
        (60, 100),
        _of_gib(
            (
                ("1g", "10gb", 9856, 14),
                ("1g+me", "10gb+me", 9856, 14),
                ("1g double", "20gb", 19968, 14),
                ("2g", "20gb", 19968, 28),
                ("3g", "40gb", 40192, 42),
                ("4g", "40gb", 40192, 56),
                ("7g", "80gb", 80384, 98),
            )
        ),
    ),
    "H100-80": (
        ("H100", "H800"),
        (0, 90),
        (
            ("1g", "10gb", 9.75, 16),
            ("1g+me", "10gb+me", 9.75, 16),
            ("1g double", "20gb", 19.62, 26),
            ("2g", "20gb", 19.62, 32),
            ("3g", "40gb", 39.5, 60),
            ("4g", "40gb", 39.5, 64),
            ("7g", "80gb", 79.25, 132),
        ),
    ),
    "H200": (
        ("H200",),
        (0, 0),
        (
            ("1g", "18gb", 16.0, 16),
            ("1g+me", "18gb+me", 16.0, 16),
            ("1g double", "35gb", 32.25, 26),
            ("2g", "35gb", 32.25, 32),
            ("3g", "71gb", 69.5, 60),
            ("4g", "71gb", 69.5, 64),
            ("7g", "141gb", 140.0, 132),
        ),
    ),
    "B200": (
        ("B200",),
        (0, 0),
        (
            ("1g", "23gb", 22.0, 18),
            ("1g+me", "23gb+me", 22.0, 18),
            ("1g double", "45gb", 44.25, 30),
            ("2g", "45gb", 44.25, 36),
            ("3g", "90gb", 88.5, 68),
            ("4g", "90gb", 88.5, 72),
            ("7g", "180gb", 177.0, 148),
        ),
    ),
    "GB200": (
        ("GB200",),
        (0, 0),
        (
            ("1g", "23gb", 22.9, 18),
            ("1g double", "47gb", 45.8, 30),
            ("2g", "47gb", 45.8, 36),
            ("3g", "93gb", 91.6, 68),
            ("4g", "93gb", 91.6, 72),
            ("7g", "186gb", 183.2, 148),
        ),
    ),
    "B300": (
        ("B300", "GB300"),
        (0, 0),
        (
            ("1g", "34gb", 33.0, 18),
            ("1g double", "67gb", 66.0, 30),
            ("2g", "67gb", 66.0, 36),
            ("3g", "135gb", 132.0, 68),
            ("4g", "135gb", 132.0, 72),
            ("7g", "269gb", 264.0, 148),
        ),
    ),
    "A30": (
        ("A30",),
        (0, 0),
        (
            ("1g", "6gb", 5.8, 14),
            ("1g+me", "6gb+me", 5.8, 14),
            ("2g", "12gb", 11.7, 28),
            ("2g+me", "12gb+me", 11.7, 28),
            ("4g", "24gb", 23.4, 56),
        ),
    ),
    "RTX-PRO-6000": (
        ("RTX PRO 6000",),
        (0, 0),
        (
            ("1g", "24gb", 23.6, 46),
            ("2g", "48gb", 47.3, 94),
            ("4g", "96gb", 94.9, 188),
        ),
    ),
}
"""GPUs: words of the product's name, its memory in GB from and below (0, 0: any), its profiles."""


@cache
def mig_gpus() -> tuple[MigGpu, ...]:
    """Return all GPUs whose partitions are known."""
    return tuple(_gpu(name, rows) for name, (_, _, rows) in _TABLES.items())


def mig_gpu(model: str, memory: int = 0) -> MigGpu | None:
    """Return the GPU of a product, such as "NVIDIA A100-SXM4-40GB"; None if it is not known.

    :param memory: in bytes; 0 takes it from the name, and without that the larger GPU.
    """
    words = f" {model.upper().replace('-', ' ')} "
    size = memory / 10**9 or _stated(words)
    for gpu, (names, (low, below), _) in zip(mig_gpus(), _TABLES.values(), strict=True):
        if any(f" {name} " in words for name in names):
            if not below or low <= (size or below - 1) < below:
                return gpu
    return None


def resource_name(profile: str) -> str:
    """Return the extended resource of a profile with the strategy "mixed".

    ``1g.10gb+me`` is ``nvidia.com/mig-1g.10gb.me``.
    """
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def _stated(words: str) -> float:
    """Return the memory in a product's name, such as 40 of ``A100 SXM4 40GB``; 0 without one."""
    sizes = (word.removesuffix("GB") for word in words.split() if word.endswith("GB"))
    return next((float(size) for size in sizes if size.isdecimal()), 0.0)


def _gpu(name: str, rows: tuple[_Row, ...]) -> MigGpu:
    kinds = _SEVEN if rows[-1][0] == "7g" else _FOUR
    whole = kinds[rows[-1][0]]
    profiles = tuple(_profiles(rows, kinds))
    return MigGpu(name, whole.slices, whole.size, profiles)


def _profiles(rows: tuple[_Row, ...], kinds: dict[str, _Kind]) -> Iterator[MigProfile]:
    most, whole = rows[-1][3], rows[-1][0]
    for key, name, gibibytes, multiprocessors in rows:
        kind = kinds[key]
        made = PartitionProfile(
            f"{kind.slices}g.{name}",
            round(gibibytes * 1024) * MEBIBYTE,
            WHOLE * multiprocessors // most,
            kind.slices,
            kind.starts,
            kind.size,
            most=int(kind.media),
        )
        media = int(kind.media or key == whole)
        engines = (
            ("copy-engines", kind.slices),
            ("jpeg-engines", media),
            ("ofa-engines", media),
        )
        yield MigProfile(kind.id, made, multiprocessors, engines)
