"""The reference EP: an execution provider without a vendor SDK, and the specification of one.

provider.py     the provider, and the nodes it takes
options.py      options, and which binaries a host can load
layout.py       the specified format of the context binary; reader.py
workspace.py    compiles partitions into graphs of a binary, and writes it
loading.py      finds the graph of every EPContext node; kernels run it
"""

from epctx.providers.reference.provider import ReferenceExecutionProvider

__all__ = ["ReferenceExecutionProvider"]
