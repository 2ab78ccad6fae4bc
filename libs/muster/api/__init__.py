"""The generated API (`v1`), and the one thing it imports that no package provides.

The generated modules import `buf.validate.validate_pb2`, the descriptors of the validation rules. The protovalidate
package carries these descriptors for another protobuf runtime, so they are registered here for this one; nothing of
that proto is copied. Where some package does provide the module, that one is used.
"""

from __future__ import annotations

import importlib.util
import sys
import types


def _provide_validation_rules() -> None:
    name = "buf.validate.validate_pb2"
    if name in sys.modules or (importlib.util.find_spec("buf") and importlib.util.find_spec("buf.validate")):
        return
    from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, field_mask_pb2, timestamp_pb2
    from google.protobuf.internal import builder
    from protovalidate._gen.buf.validate import validate_pb

    assert descriptor_pb2 and duration_pb2 and field_mask_pb2 and timestamp_pb2  # imported to be in the pool
    serialised = validate_pb.desc().proto.to_binary()
    descriptor = descriptor_pool.Default().AddSerializedFile(serialised)
    module = types.ModuleType(name)
    module.DESCRIPTOR = descriptor  # type: ignore[attr-defined]
    builder.BuildMessageAndEnumDescriptors(descriptor, module.__dict__)
    builder.BuildTopDescriptorsAndMessages(descriptor, name, module.__dict__)
    for package in ("buf", "buf.validate"):
        parent = sys.modules.setdefault(package, types.ModuleType(package))
        parent.__path__ = []
    sys.modules["buf.validate"].validate_pb2 = module  # type: ignore[attr-defined]
    sys.modules[name] = module


_provide_validation_rules()
