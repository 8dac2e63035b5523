"""The geographic prior of the iNaturalist-2018 protocol: where each species occurs, learned from embeddings of places.

p_c(x) = sigmoid(w_c . e(x) + b_c)            e(x) the unit embedding of a place
loss   = mean over places and classes of -log(1 - p_c), but of -2048 log p_c for the class that was seen
P(y | image, place)  proportional to  P(y | image) P(y | place)
"""

import contextlib
import difflib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.embedding import Embedder
from tessearth.errors import ConfigError, CoordinateError, DataError, UnknownNameError, WeightsError
from tessearth.sphere import check_latlon
from tessearth.storage import AS_USUAL, Reading, read_labelled, read_npz, read_sealed_tensors, seal_tensors, write_bytes

Array = npt.NDArray[Any]
Codes = npt.NDArray[np.int64]

TOP = (1, 3, 5, 10)
SCORES_AT_ONCE = 2**22
"""Class scores held at once: 16 MB of float32, and a few more arrays of that size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorSettings:
    """The settings of the fit; the defaults are the protocol's."""

    positive_weight: float = 2048.0
    """The weight of the class that was seen, against each that was not."""
    learning_rate: float = 1e-3
    epochs: int = 50
    batch_size: int = 2048
    seed: int = 0
    """Of the order of the rows; the weights start at zero."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0 and name != "seed":
                raise ConfigError(f"{name} is {value}; it must be above 0")


class GeoPrior(NamedTuple):
    """A fitted prior."""

    weight: Tensor
    """(C, D)."""
    bias: Tensor
    """(C,)."""

    @torch.inference_mode()
    def probabilities(self, embeddings: Array) -> npt.NDArray[np.float32]:
        """How likely each class is at each place: embeddings (N, D) to (N, C), each between 0 and 1."""
        unit = _unit(embeddings, self.weight.device)
        return np.asarray(torch.sigmoid(torch.addmm(self.bias, unit, self.weight.T)).cpu().numpy())

    def of_class(self, code: int) -> "GeoPrior":
        """The prior of one class alone."""
        return GeoPrior(self.weight[code : code + 1], self.bias[code : code + 1])


class TopAccuracy(NamedTuple):
    """The share of rows whose class is among the k best, for each k of `TOP`."""

    image: dict[int, float]
    """By the image scores alone."""
    combined: dict[int, float]
    """By image and place."""
    rows: int


def fit_prior(
    embeddings: Array,
    classes: Array,
    num_classes: int,
    settings: PriorSettings | None = None,
    *,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[int, float], None] | None = None,
) -> GeoPrior:
    """Fit the prior to embeddings (N, D) of the places where classes (N,) were seen, by Adam.

    The gradient is in closed form instead of recorded, so a step holds one array of batch by classes. `on_epoch` gets
    the number of finished epochs and the mean loss of the last.
    """
    settings = settings or PriorSettings()
    where = torch.device(device)
    code = _check_classes(classes, num_classes, len(embeddings))
    weight = torch.zeros(num_classes, embeddings.shape[1], device=where)
    bias = torch.zeros(num_classes, device=where)
    optimiser = torch.optim.Adam([weight, bias], settings.learning_rate)
    generator = torch.Generator().manual_seed(settings.seed)
    for epoch in range(settings.epochs):
        losses = 0.0
        for rows in torch.split(torch.randperm(len(code), generator=generator), settings.batch_size):
            unit = _unit(embeddings[rows.numpy()], where)
            loss, weight.grad, bias.grad = _loss_and_gradient(
                unit, code[rows].to(where), weight, bias, settings.positive_weight
            )
            optimiser.step()
            losses += float(loss) * len(rows)
        if on_epoch is not None:
            on_epoch(epoch + 1, losses / len(code))
    return GeoPrior(weight, bias)


def prior_loss(logits: Tensor, code: Tensor, positive_weight: float) -> Tensor:
    """The loss of logits (N, C) for the classes seen (N,): -log(1 - p) everywhere, -weight log p where seen."""
    seen = logits.gather(1, code[:, None])
    return (F.softplus(logits).sum() + (positive_weight * F.softplus(-seen) - F.softplus(seen)).sum()) / logits.numel()


def combine(image_scores: Array, place_scores: Array) -> Array:
    """P(y | image, place), rows adding up to 1: the product of both, (N, C)."""
    product = np.multiply(image_scores, place_scores, dtype=np.float64)
    total = product.sum(1, keepdims=True)
    return np.asarray(product / np.where(total > 0, total, 1))


def evaluate_prior(prior: GeoPrior, rows: Iterable[tuple[Array, Array, Array]]) -> TopAccuracy:
    """How often image scores, alone and with the prior, put the class among the best.

    `rows` are blocks of (embeddings (n, D), image scores (n, C), classes (n,)); blocks may be of any size, so the
    scores need never be whole in memory. A row of NaN embeddings has no known place and is judged by its image alone.
    """
    ranks: list[Codes] = []
    both: list[Codes] = []
    for embeddings, scores, classes in rows:
        _check_scores(scores, prior)
        code = _check_classes(classes, len(prior.bias), len(scores)).numpy()
        place_scores, known = np.ones(scores.shape, dtype=np.float32), np.isfinite(embeddings).all(1)
        place_scores[known] = prior.probabilities(embeddings[known])
        ranks.append(ranks_of(scores, code))
        both.append(ranks_of(combine(scores, place_scores), code))
    if not sum(map(len, ranks)):
        raise DataError("there are no rows to evaluate the prior on")
    image, combined = np.concatenate(ranks), np.concatenate(both)
    first, second = ({k: float((found < k).mean()) for k in TOP} for found in (image, combined))
    return TopAccuracy(first, second, len(image))


def ranks_of(scores: Array, code: Codes) -> Codes:
    """How many classes come before the true one (0 is the best), ties in the order of their codes: (N, C) -> (N,)."""
    own = np.take_along_axis(scores, code[:, None], axis=1)
    earlier = np.arange(scores.shape[1]) < code[:, None]
    ranks: Codes = (scores > own).sum(1) + ((scores == own) & earlier).sum(1)
    return ranks


def _loss_and_gradient(
    unit: Tensor, code: Tensor, weight: Tensor, bias: Tensor, positive_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The slope of the loss by a logit is p where a class was not seen, -weight (1 - p) where it was, over N C."""
    logits = torch.addmm(bias, unit, weight.T)
    loss = prior_loss(logits, code, positive_weight)
    slope = logits.sigmoid_()
    seen = slope.gather(1, code[:, None])
    slope.scatter_(1, code[:, None], positive_weight * (seen - 1)).div_(slope.numel())
    return loss, slope.T @ unit, slope.sum(0)


def _unit(embeddings: Array, device: torch.device) -> Tensor:
    return F.normalize(torch.as_tensor(np.asarray(embeddings), dtype=torch.float32, device=device), dim=-1)


def _check_classes(classes: Array, num_classes: int, rows: int) -> Tensor:
    code = np.asarray(classes)
    if code.shape != (rows,) or code.dtype.kind not in "iu":
        raise DataError(f"classes are {code.dtype} of shape {code.shape}; they must be whole numbers ({rows},)")
    if rows and not 0 <= code.min() <= code.max() < num_classes:
        raise DataError(f"classes run from {code.min()} to {code.max()}; there are {num_classes}, counted from 0")
    return torch.from_numpy(code.astype(np.int64))


def _check_scores(scores: Array, prior: GeoPrior) -> None:
    if scores.ndim != 2 or scores.shape[1] != len(prior.bias):
        raise DataError(f"image scores have shape {scores.shape}; the prior knows {len(prior.bias)} classes")
    if not (np.isfinite(scores).all() and scores.min(initial=0) >= 0):
        raise DataError("image scores must be probabilities: finite and not negative (apply softmax to logits first)")


Floats = npt.NDArray[np.float64]

SIGHTINGS = ("lon", "lat", "classes")
SCORES = "prediction"
FORMAT = "tessearth-prior"


class Sightings(NamedTuple):
    """Where each class was seen."""

    latlon: Floats
    """(N, 2) degrees; rows of NaN where the place is unknown."""
    classes: Codes
    """(N,) codes from 0."""
    names: tuple[str, ...]
    """Of the classes; empty when the file has only numbers."""
    path: str = ""
    """Their file."""
    has_scores: bool = False
    """Whether the file also holds image scores."""
    dropped: int = 0
    """How many rows of a table have no species or no usable place and are left out."""

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Rows that have a place, (N,)."""
        return np.asarray(np.isfinite(self.latlon).all(1))


def read_sightings(path: str | PathLike[str], species: str = "species", reading: Reading = AS_USUAL) -> Sightings:
    """Read an npz of iNaturalist's layout (with or without image scores), or a table with a column of species names."""
    if Path(path).suffix.lower() != ".npz":
        table = read_labelled(path, species, "classify", reading)
        return Sightings(table.latlon, table.target, table.classes, str(path), dropped=table.dropped)
    arrays, with_scores = _read_arrays(path)
    lat, lon, classes = arrays["lat"], arrays["lon"], arrays["classes"]
    if not lat.shape == lon.shape == classes.shape or lat.ndim != 1:
        raise DataError(f"{path}: lon, lat and classes have shapes {lon.shape}, {lat.shape} and {classes.shape}")
    if classes.dtype.kind not in "iu" or (len(classes) and classes.min() < 0):
        raise DataError(f"{path}: classes are {classes.dtype}; they must be whole numbers from 0")
    latlon = np.stack((lat, lon), -1).astype(np.float64)
    sightings = Sightings(latlon, classes.astype(np.int64), (), str(path), with_scores)
    try:
        check_latlon(sightings.latlon[sightings.known])
    except CoordinateError as error:
        raise DataError(f"{path}: among the rows with a place, {error}") from None
    return sightings


def read_scores(path: str | PathLike[str]) -> Iterator[npt.NDArray[np.float32]]:
    """The image scores of an npz, (n, C) at a time in the order of the rows, never whole in memory."""
    with _named_errors(path), zipfile.ZipFile(path) as archive:
        if f"{SCORES}.npy" not in archive.namelist():
            raise DataError(f"{path} holds no image scores ({SCORES})")
        with archive.open(f"{SCORES}.npy") as file:
            rows, width, dtype = _read_header(file, path)
            step = max(1, SCORES_AT_ONCE // width)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                content = file.read(count * width * dtype.itemsize)
                if len(content) < count * width * dtype.itemsize:
                    raise DataError(f"{path}: {SCORES} ends after fewer than its {rows} rows")
                yield np.frombuffer(content, dtype).reshape(count, width).astype(np.float32, copy=False)


def save_prior(
    prior: GeoPrior,
    path: str | PathLike[str],
    *,
    names: tuple[str, ...] = (),
    model: str = "",
    fingerprint: str = "",
) -> None:
    """Write a prior with the names of its classes and the model whose embeddings it reads."""
    header = {"format": FORMAT, "model": model, "fingerprint": fingerprint, "names": "\n".join(names)}
    write_bytes(path, seal_tensors({"weight": prior.weight, "bias": prior.bias}, header))


class SavedPrior(NamedTuple):
    """The content of a prior's file."""

    prior: GeoPrior
    names: tuple[str, ...]
    model: str
    fingerprint: str = ""
    """Of the embeddings it was fitted to."""

    def code_of(self, species: str) -> int:
        """The code of a class by its name, or by its number where classes have no names."""
        if self.names:
            if species not in self.names:
                raise UnknownNameError(f"the prior knows no species {species!r}{_near(species, self.names)}")
            return self.names.index(species)
        if not (species.isdecimal() and int(species) < len(self.prior.bias)):
            raise UnknownNameError(f"the prior's species are numbers from 0 to {len(self.prior.bias) - 1}")
        return int(species)

    def codes_of(self, sightings: Sightings) -> Codes:
        """The classes of sightings in the prior's codes, (N,); -1 for a species the prior does not know."""
        if bool(sightings.names) != bool(self.names):
            raise DataError("either the prior or the table has names for its species, and the other only numbers")
        if not self.names:
            return np.where(sightings.classes < len(self.prior.bias), sightings.classes, -1)
        own = {name: code for code, name in enumerate(self.names)}
        translated = np.array([own.get(name, -1) for name in sightings.names], dtype=np.int64)
        return np.asarray(translated[sightings.classes])


def load_prior(path: str | PathLike[str]) -> SavedPrior:
    """Read a prior that `save_prior` wrote."""
    if not Path(path).exists():
        raise DataError(f"there is no file {path}")
    try:
        header, tensors = read_sealed_tensors(path)
    except WeightsError:
        raise DataError(f"{path} is not a prior, or is damaged") from None
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if header.get("format") != FORMAT or weight is None or bias is None or len(weight) != len(bias):
        raise DataError(f"{path} is not a prior written by tessearth")
    names = tuple(header["names"].split("\n")) if header.get("names") else ()
    if names and len(names) != len(bias):
        raise DataError(f"{path} is damaged: {len(names)} names for {len(bias)} species")
    return SavedPrior(GeoPrior(weight, bias), names, header.get("model", ""), header.get("fingerprint", ""))


def score_sightings(
    saved: SavedPrior, sightings: Sightings, embedder: Embedder, progress: Callable[[int, int], None]
) -> TopAccuracy:
    """How often the right species is among the best, by image and by image and place; by place without image scores.

    Left out are species the prior does not know and, without image scores, sightings without a place. `progress` gets
    the number of rows done and that of all.
    """
    codes, known = saved.codes_of(sightings), sightings.known
    wanted = codes >= 0 if sightings.has_scores else (codes >= 0) & known
    if not wanted.any():
        told = f"none of its {len(codes)} sightings is of a species the prior knows, with a place"
        raise DataError(f"{sightings.path}: {told}")

    def blocks() -> Iterator[tuple[Array, Array, Array]]:
        done = 0
        for scores in _image_scores(sightings, len(saved.prior.bias)):
            kept = wanted[done : done + len(scores)]
            rows = done + np.flatnonzero(kept)
            done += len(scores)
            if done > len(codes):
                break
            embeddings = np.full((len(rows), embedder.dim), np.nan, dtype=np.float32)
            embeddings[known[rows]] = embedder.embed(sightings.latlon[rows[known[rows]]])
            yield embeddings, scores[kept], codes[rows]
            progress(done, len(codes))
        if done != len(codes):
            raise DataError(
                f"there are image scores for {done} rows and {len(codes)} sightings: they do not go together"
            )

    return evaluate_prior(saved.prior, blocks())


def _image_scores(sightings: Sightings, species: int) -> Iterator[npt.NDArray[np.float32]]:
    """Scores (n, C) of consecutive rows; equal scores where there are no images."""
    if sightings.has_scores:
        return read_scores(sightings.path)
    step, total = max(1, SCORES_AT_ONCE // species), len(sightings.classes)
    return (np.full((min(step, total - start), species), 1 / species, np.float32) for start in range(0, total, step))


def _near(species: str, names: tuple[str, ...]) -> str:
    """Thousands of names are not listed."""
    near = difflib.get_close_matches(species, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f" among its {len(names):,}, such as {names[0]!r}"


def _read_arrays(path: str | PathLike[str]) -> tuple[dict[str, npt.NDArray[Any]], bool]:
    """The sightings of an npz, and whether it also holds image scores, which stay unread."""
    with _named_errors(path), zipfile.ZipFile(path) as archive:
        with_scores = f"{SCORES}.npy" in archive.namelist()
    if not with_scores:
        return read_npz(path, SIGHTINGS), False
    with np.load(path, allow_pickle=False) as arrays:
        for name in SIGHTINGS:
            if name not in arrays.files:
                raise DataError(f"{path} has no {name}; it must hold {', '.join((*SIGHTINGS, SCORES))}")
        return {name: np.asarray(arrays[name]) for name in SIGHTINGS}, True


@contextlib.contextmanager
def _named_errors(path: str | PathLike[str]) -> Iterator[None]:
    """What can be wrong with an npz, in one line."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, zipfile.BadZipFile, EOFError):
        raise DataError(f"{path} is not an npz of plain arrays, or is damaged") from None


def _read_header(file: IO[bytes], path: str | PathLike[str]) -> tuple[int, int, np.dtype[Any]]:
    """The shape and type of an array at the beginning of its file."""
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, by_column, dtype = read(file)
    except (ValueError, KeyError):
        raise DataError(f"{path}: {SCORES} is not a plain array") from None
    if len(shape) != 2 or by_column or dtype.kind != "f":
        raise DataError(f"{path}: {SCORES} is {dtype} of shape {shape}; it must be numbers (rows, classes) row by row")
    return shape[0], shape[1], dtype
