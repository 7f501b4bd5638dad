"""Running EPContext models; `epctx.runtime` is the public name.

session.py      `Session`, whose API is onnxruntime's
options.py      session options
selection.py    which EP takes which node
loading.py      the model made ready to run, and the contexts that sessions of a process share
pipeline.py     its steps: kernels, and sessions of what lies between them; split.py cuts them
values.py       values, inputs and outputs; feeds.py: generated inputs, and those from files
trial.py        `epctx run`
"""
