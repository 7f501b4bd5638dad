"""Provider-independent passes over onnx_ir graphs (design section 7, "optimize").

`base` is what a pass is, `registry` the passes by name, third parties' among them.
Nothing is imported here: names can be checked without the second that onnx_ir takes.
"""
