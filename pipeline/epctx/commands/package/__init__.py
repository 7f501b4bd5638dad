"""ONNX Runtime model packages, schema major 1, portable layout: written and checked.

    <name>.ortpackage/
        manifest.json                    components, their variants, provenance
        <target>/<group>/                a variant's folder: models, context binaries, extra files
        shared_assets/sha256-<hex>/      what several variants share, by the digest of its content
        SHA256SUMS                       every other file

A component is a model, a variant a target. ONNX Runtime 1.28 and later read it, and pick the
variant that fits the session's first EP.
"""
