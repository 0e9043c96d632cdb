"""Amounts of money: currencies, and the one place where an amount is rounded."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import msgspec

__all__ = ["CURRENCIES", "Money", "decimal_text", "rounded"]

_BY_MINOR_UNITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN "
    "BZD CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP "
    "GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP "
    "LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR "
    "NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN "
    "SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER ZAR "
    "ZMW ZWG",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}

CURRENCIES = {code: units for units, codes in _BY_MINOR_UNITS.items() for code in codes.split()}
"""ISO 4217: the decimal places of each currency's minor unit."""


class Money(msgspec.Struct, frozen=True):
    """An amount in a currency, rounded to its minor unit."""

    amount: Decimal
    currency: str

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"


def rounded(amount: Fraction | Decimal, currency: str) -> Decimal:
    """Round an exact amount to the currency's minor unit, a half to the even digit."""
    places = CURRENCIES[currency]
    return Decimal(round(Fraction(amount) * 10**places)).scaleb(-places)


def decimal_text(value: Fraction | Decimal, places: int) -> str:
    """Return a number with at most so many decimal places, without zeros at its end."""
    text = f"{Decimal(round(Fraction(value) * 10**places)).scaleb(-places):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
