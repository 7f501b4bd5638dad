"""The reference EP: an execution provider without a vendor SDK, and the specification of one.

provider.py     what it is and takes
options.py      its options, and which binaries a host can load
layout.py       the format of its context binary, specified; reader.py
workspace.py    compiling: partitions as graphs of a binary, written
loading.py      every EPContext node finds its graph; kernels run it
"""

from epctx.providers.reference.provider import ReferenceExecutionProvider

__all__ = ["ReferenceExecutionProvider"]
