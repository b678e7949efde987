"""A table with a column of texts: rows of numbers of words, for networks that read words, such as pretrained ones.

The tokenizer is the user's, so the data are named as a function of theirs, ``module:function``, which calls ``load``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.data.own.files import read_labelled
from gossamer.data.own.record import labels_of, split_examples
from gossamer.likelihoods import Categorical
from gossamer.types import Task

Tokenize = Callable[[list[str]], Sequence[Sequence[int]]]


def load(
    path: Path | str,
    *,
    text: str,
    target: str | None,
    tokenize: Tokenize,
    length: int = 64,
    padding: int = 0,
    n_val: int | None = None,
) -> Task:
    """The task in a table of texts: inputs are ``(length,)`` whole numbers, those of the words and then ``padding``.

    A fifth of the rows is for testing and a tenth of the rest is held out, always the same ones.

    Args:
        path: The file, such as ``.csv`` or ``.parquet``; its first line has the names of the columns.
        text: The column of texts.
        target: The column of their classes; ``None`` for texts of no class, all of which are for testing, as
            ``gossamer evaluate --ood module:function`` reads them.
        tokenize: The numbers of the words of each text in a list.
        length: How many words of a text are read.
        padding: The number of no word.
        n_val: How many of the rows that are not for testing to hold out for choices.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mail.csv"
        >>> rows = ["text,kind", *["buy now,spam", "see you at four,mail"] * 10]
        >>> _ = path.write_text(chr(10).join(rows))
        >>> def lengths(texts):
        ...     return [[len(word) for word in text.split()] for text in texts]
        >>> task = load(path, text="text", target="kind", tokenize=lengths, length=3)
        >>> task.train[0].shape, task.class_names, task.test[0].unique(dim=0).tolist()
        (torch.Size([15, 3]), ('mail', 'spam'), [[3, 3, 0], [3, 3, 2]])
    """
    path = Path(path).expanduser()
    frame, _ = read_labelled(path, target, [text])
    x = _padded(tokenize([str(one) for one in frame[text].tolist()]), len(frame), length, padding)
    if target is None:
        nothing, y = (x[:0], torch.zeros(0, dtype=torch.int64)), torch.zeros(len(x), dtype=torch.int64)
        return Task(nothing, nothing, (x, y), Categorical(), n_outputs=2, name=path.stem)
    parts = split_examples(len(frame), n_val, path.name)
    labels, described = labels_of(frame[target], target, "classification", parts[0], path.name)
    y, names = torch.from_numpy(labels), tuple(described["classes"])
    train, val, test = ((x[rows], y[rows]) for rows in parts)
    return Task(train, val, test, Categorical(), n_outputs=len(names), name=path.stem, class_names=names)


def _padded(rows: Any, n: int, length: int, padding: int) -> Tensor:
    """Rows of the same length; an error if a tokenizer has not given a row of whole numbers for each text."""
    try:
        parts = [torch.as_tensor(list(row)[:length], dtype=torch.int64) for row in rows]
    except (TypeError, ValueError) as error:
        raise ValueError(f"tokenize must return a list of whole numbers for each text: {error}") from error
    if len(parts) != n:
        raise ValueError(f"tokenize must return a row of numbers for each of the {n} texts; got {len(parts)}")
    x = torch.full((n, length), padding)
    for row, part in zip(x, parts, strict=True):
        row[: len(part)] = part
    return x
