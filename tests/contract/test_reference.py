"""The reference EP is what a provider must be."""

from __future__ import annotations

from epctx.provider_tests import ExecutionProviderConformance
from epctx.providers.base import ExecutionProvider
from epctx.providers.reference import ReferenceExecutionProvider


class TestReference(ExecutionProviderConformance):
    def create(self) -> ExecutionProvider:
        return ReferenceExecutionProvider({})


class TestReferenceWithOptions(ExecutionProviderConformance):
    def create(self) -> ExecutionProvider:
        return ReferenceExecutionProvider(
            {
                "source": "npu.0",
                "exclude_ops": ("Softmax",),
                "hardware_architecture": "v75",
                "sdk_version": "2.1",
                "driver_version": "30.1.2",
                "notes": 'with "quotes" and ümläut',
            }
        )
