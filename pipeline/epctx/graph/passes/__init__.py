"""Provider-independent passes over onnx_ir graphs (design section 7, "optimize").

`base` defines a pass; `registry` has all passes by name, third parties' included.
"""
