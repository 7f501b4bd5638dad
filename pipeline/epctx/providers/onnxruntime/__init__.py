"""Real execution providers, driven through ONNX Runtime.

    session.py      one generating session, its errors in words
    staging.py      the model as such a session gets it
    workspace.py    the sessions of a session group, their files checked and handed on
    provider.py     what all EPs of onnxruntime have in common
    qnn.py, openvino.py, builtin.py     each EP's own knowledge, with the version it was measured on

What these modules guard against was measured: real-eps.md.
"""
