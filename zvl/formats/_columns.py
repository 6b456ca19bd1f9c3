"""What the formats with columns have in common: rows by way of Arrow tables, texts and pictures apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zvl.errors import BadData
from zvl.formats._arrow import to_sample
from zvl.formats._fields import IMAGE_STRUCT, picture, picture_of
from zvl.formats._files import Files, check_rows
from zvl.operator import Sample

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns"]


class Columns(Files, ABC):
    """Base class of formats whose rows are those of Arrow tables. They say what columns there are, and take rows."""

    @abstractmethod
    def _schema(self, shard: int) -> pa.Schema:
        """The columns of a shard, in the order of a row's fields."""

    @abstractmethod
    def _take(self, shard: int, rows: Sequence[int], columns: Sequence[str] | None) -> list[dict[str, Any]]:
        """Those rows, which rise and come once each, as dicts; of those columns, one at least, where they are named."""

    @abstractmethod
    def _where(self, shard: int) -> str:
        """The shard, for errors."""

    def _folder(self, shard: int) -> str:
        """What the paths of pictures are relative to."""
        return self._shards.root

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; neighbours are read together. StorageError if the file changed."""
        check_rows(rows, int(self.shard_rows[shard]))
        return self._samples(shard, rows, self._take(shard, sorted(set(rows)), None) if rows else [])

    def read_texts(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Like `read`, but no picture of `images` is read: the key is there, and its value means nothing."""
        schema = self._schema(shard)
        column = _image_column(schema)
        if column is None or not rows:
            return self.read(shard, rows)
        check_rows(rows, int(self.shard_rows[shard]))
        wanted, texts = sorted(set(rows)), [name for name in schema.names if name != column]
        found = self._take(shard, wanted, texts) if texts else [{}] * len(wanted)
        full = [{name: row[name] if name != column else [] for name in schema.names} for row in found]
        return self._samples(shard, rows, full)

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        """The pictures at (row, place), in the order asked: of the other columns nothing is read."""
        column = _image_column(self._schema(shard))
        rows = sorted({row for row, _ in wanted})
        check_rows(rows, int(self.shard_rows[shard]))
        where, folder = self._where(shard), self._folder(shard)
        if column is None:
            whole = dict(zip(rows, self.read(shard, rows), strict=True))
            return [picture_of(whole[row], "images", place, f"{where} row {row}") for row, place in wanted]
        found = dict(zip(rows, self._take(shard, rows, [column]) if rows else [], strict=True))
        return [picture(found[row][column], place, f"{where} row {row}", folder) for row, place in wanted]

    def _samples(self, shard: int, rows: Sequence[int], found: Sequence[dict[str, Any]]) -> list[Sample | BadData]:
        """`found`, the rows as they rise, in the order asked."""
        where, folder = self._where(shard), self._folder(shard)
        if len(found) == len(rows) and all(map(int.__lt__, rows, rows[1:])):
            return [to_sample(row, f"{where} row {i}", folder) for row, i in zip(found, rows, strict=True)]
        by_row = dict(zip(sorted(set(rows)), found, strict=True))
        return [to_sample(by_row[row], f"{where} row {row}", folder) for row in rows]


def _image_column(schema: pa.Schema) -> str | None:
    """The column that becomes `images`, where its type says that it holds pictures; None: rows are read in full."""
    name = "images" if "images" in schema.names else "image"
    return name if name in schema.names and _holds_pictures(schema.field(name)) else None


def _holds_pictures(field: pa.Field) -> bool:
    import pyarrow as pa

    kind = field.type
    if (field.metadata or {}).get(b"lance-encoding:blob") or getattr(kind, "extension_name", "").startswith("lance."):
        return True
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        return {kind.field(i).name for i in range(kind.num_fields)} == IMAGE_STRUCT
    return any(
        check(kind)
        for check in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    )
