"""Write and check ONNX Runtime model packages: schema major 1, portable layout.

    <name>.ortpackage/
        manifest.json                    components, their variants, provenance
        <target>/<group>/                a variant's folder: models, context binaries, extra files
        shared_assets/sha256-<hex>/      files that several variants share, by digest
        SHA256SUMS                       digests of all other files

A component is a model, a variant is a target. ONNX Runtime 1.28 and later read packages, and pick
the variant that fits the session's first EP.
"""
