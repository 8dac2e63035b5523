"""When a place is meant: months and dates as shares of the year."""

import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, CoordinateError

Shares = npt.NDArray[np.float64]
ABOUT_DATES = "write YYYY-MM-DD"


def read_season(month: Any, date: Any) -> Shares | None:
    """Shares of the year in [0, 1) from months (1 to 12, their middle) or dates (noon), one or many; None from none."""
    if month is not None and date is not None:
        raise ConfigError("the season was given twice: pass month or date")
    if month is not None:
        return share_of_months(month)
    return None if date is None else share_of_dates(date)


def share_of_months(months: Any) -> Shares:
    """The middle of each month."""
    values = np.asarray(months)
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        raise CoordinateError(f"{_at(values)} is no month; give numbers from 1 to 12") from None
    wrong = ~((numbers >= 1) & (numbers <= 12) & (numbers == np.floor(numbers)))
    if wrong.any():
        raise CoordinateError(f"{_at(values, wrong)} is no month; give whole numbers from 1 to 12")
    shares: Shares = (numbers - 0.5) / 12
    return shares


def share_of_dates(dates: Any) -> Shares:
    """Noon of each day as a share of its own year, of 365 days or 366."""
    values = np.asarray(dates)
    shares = try_dates(values)
    missing = np.isnan(shares)
    if missing.any():
        raise CoordinateError(f"{_at(values, missing)} is no date; {ABOUT_DATES}")
    return shares


def try_dates(values: npt.NDArray[Any]) -> Shares:
    """The same, with NaN for what is no date."""
    days = values.astype("datetime64[D]") if values.dtype.kind == "M" else _parse(values)
    year = days.astype("datetime64[Y]")
    begun = year.astype("datetime64[D]")
    length = (year + 1).astype("datetime64[D]") - begun
    with np.errstate(invalid="ignore"):
        shares: Shares = ((days - begun).astype(np.float64) + 0.5) / length.astype(np.float64)
    return np.where(np.isnat(days), np.nan, shares)


def _parse(values: npt.NDArray[Any]) -> npt.NDArray[np.datetime64]:
    """Days of texts, dates and datetimes, one by one; NaT for what is none of these."""
    days = [_day(one) for one in values.ravel().tolist()]
    return np.array(days, dtype="datetime64[D]").reshape(values.shape)


def _day(one: object) -> np.datetime64:
    if isinstance(one, datetime.datetime):  # of any time zone: the day on its own calendar
        one = one.date()
    if not isinstance(one, str | datetime.date):
        return np.datetime64("NaT")
    try:
        day = datetime.datetime.fromisoformat(one.strip()).date() if isinstance(one, str) else one
        return np.datetime64(day, "D")
    except ValueError:
        return np.datetime64("NaT")


def _at(values: npt.NDArray[Any], wrong: npt.NDArray[np.bool_] | None = None) -> str:
    """The first wrong value, by its row where there are several."""
    if values.ndim == 0:
        return f"{values.item()!r}"
    first = 0 if wrong is None else int(wrong.ravel().argmax())
    return f"{values.ravel()[first : first + 1].tolist()[0]!r} in row {first}"
