"""Between what a whole number of a message must be: what its type holds, and what the proto declares beside that.

So a number that is too large is told with the bound that counts, before anybody is asked.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor

INT32: Final = (-(2**31), 2**31 - 1)
INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
_RULES: Final = {
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def bounds(field: FieldDescriptor) -> tuple[int, int]:
    """The least and the greatest value of a field that is a whole number."""
    least, most = INTEGERS[field.type]
    rules: Any = descriptor_pool.Default().FindExtensionByName("buf.validate.field")
    declared = getattr(field.GetOptions().Extensions[rules], _RULES[field.type])
    if declared.HasField("gte"):
        least = max(least, declared.gte)
    if declared.HasField("lte"):
        most = min(most, declared.lte)
    return least, most


def outside(field: FieldDescriptor, value: int) -> str:
    """What is wrong with the value; "" when nothing is."""
    least, most = bounds(field)
    return "" if least <= value <= most else f"{value} is not between {least} and {most}"
