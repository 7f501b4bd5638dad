"""Running EPContext models; `epctx.runtime` is the public name.

session.py      `Session`, whose API is onnxruntime's
options.py      session options
selection.py    which EP takes which node
loading.py      loads a model; holds the contexts that sessions of a process share
pipeline.py     a model's steps: kernels, and sessions between them; split.py makes the cuts
values.py       values, inputs and outputs; feeds.py: generated inputs, and those from files
trial.py        `epctx run`
"""
