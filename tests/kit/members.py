"""Workers that are there in name only."""

from __future__ import annotations

from epctx.machines.cluster import Member
from epctx.machines.messages import Facts, own_code
from epctx.providers.onnxruntime.host import Cpu

INTEL, AMD = (Cpu(vendor=name, family="6", model="1", flags=()) for name in ("Intel", "AMD"))
HERE = own_code()


def member(name: str, cpu: Cpu = INTEL, jobs: int = 1) -> Member:
    facts = Facts(name=name, epctx="1", code=HERE, cpu=cpu, jobs=jobs)
    return Member(address=f"tcp://{name}", facts=facts)
