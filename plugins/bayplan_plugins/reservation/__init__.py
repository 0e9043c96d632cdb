"""Reservation: pods take what Koordinator's reservations keep for them."""

from bayplan_plugins.reservation.plugin import Reservation, ReservationArgs

__all__ = ["Reservation", "ReservationArgs"]
