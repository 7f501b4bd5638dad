"""Real execution providers, driven through ONNX Runtime.

    ep.py, provider.py              what all EPs of onnxruntime have in common
    qnn/, openvino/, builtin.py     each EP's own knowledge, with the version it was measured on
    capability.py                   which nodes an EP takes, asked before a compile
    workspace.py                    the sessions of a session group
    session.py, exchange.py         one session and its log; the files that it reads and writes
    whole_model.py                  a model run through its sessions
    supervisor.py, native_process.py, job_object.py     processes that may crash

The faults that these modules guard against were measured: real-eps.md.
"""
