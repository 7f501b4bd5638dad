"""The reference EP: an execution provider without a vendor SDK, and the specification of one.

provider.py     what it is and takes
options.py      its options; versions.py: which binaries a host can load
layout.py       the format of its context binary, specified; writer.py, reader.py
lowering.py     a partition as a graph of the binary; workspace.py: compiling
loading.py      every EPContext node finds its graph; kernels.py: running it
"""

from epctx.providers.reference.provider import ReferenceExecutionProvider

__all__ = ["ReferenceExecutionProvider"]
