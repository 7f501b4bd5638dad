"""Codes of the kinds of error: `E`, the exit code in two digits, the kind in two digits.

`Exx00` is for errors that no other code of the exit code fits. 13 stands for exit code 130. A code
never changes its meaning and is never given to another kind; `docs/errors` has a page for each,
which `epctx explain` prints. A new kind is a line here, a page there, and `code=` where it is
raised.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Code for a kind of error, the same in every version of epctx."""

    BUG = "E0100"

    USAGE = "E0200"
    COMMAND_LINE = "E0201"
    NO_SUCH_PATH = "E0202"
    NO_SUCH_CHOICE = "E0203"
    ENVIRONMENT = "E0204"
    IN_THE_WAY = "E0205"
    INPUT_MISFIT = "E0206"

    MANIFEST = "E0300"
    MANIFEST_UNREADABLE = "E0301"
    NO_YAML = "E0302"
    DUPLICATE_KEY = "E0303"
    UNKNOWN_KEY = "E0304"
    MISSING_KEY = "E0305"
    WRONG_TYPE = "E0306"
    WRONG_VALUE = "E0307"
    WRONG_NAME = "E0308"
    NO_SUCH_NAME = "E0309"
    PATH_REFUSED = "E0310"
    UNKNOWN_PROVIDER = "E0311"
    UNKNOWN_OPTION = "E0312"
    WRONG_OPTION_VALUE = "E0313"
    OWNED_SETTING = "E0314"
    UNKNOWN_SOC = "E0315"
    SHARING = "E0316"
    OUTPUT_CLASH = "E0317"
    COMPOSITION = "E0318"
    PACKAGE = "E0319"
    NO_SUCH_PASS = "E0320"
    VERIFY_INPUTS = "E0321"
    NOTHING_EXCLUDED = "E0322"
    OPTIONS_DISAGREE = "E0323"
    CALIBRATION = "E0324"

    MODEL = "E0400"
    MODEL_MISSING = "E0401"
    DATA_MISSING = "E0402"
    MODEL_BROKEN = "E0403"
    OPEN_DIMENSIONS = "E0404"
    SIZE_MISFIT = "E0405"
    NO_KERNEL = "E0406"
    COMPILED_ALREADY = "E0407"
    DATA_REFUSED = "E0408"
    NOT_REGULAR = "E0409"
    MODEL_TOO_LARGE = "E0410"
    NOT_QUANTIZED = "E0411"

    PROVIDER = "E0500"
    NOT_INSTALLED = "E0501"
    NO_DEVICE = "E0502"
    PACKAGES_CLASH = "E0503"
    MACHINES = "E0504"

    COMPILE = "E0600"
    CRASHED = "E0601"
    OUT_OF_MEMORY = "E0602"
    NOTHING_COMPILED = "E0603"
    COVERAGE_MISSED = "E0604"
    OUTPUT_TOO_LARGE = "E0605"
    NOT_IN_CACHE = "E0606"

    VERIFICATION = "E0700"
    INTEGRITY = "E0701"
    CONFORMANCE = "E0702"
    COMPATIBILITY = "E0703"
    NUMBERS = "E0704"
    INVALID_GRAPH = "E0705"
    SIGNATURE = "E0706"

    LOCK_DIFFERS = "E0801"
    NO_LOCK = "E0802"
    LOCK_UNREADABLE = "E0803"
    OTHER_HOST = "E0804"
    NOT_REPRODUCIBLE = "E0805"
    BUILDS_DIFFER = "E0806"

    STORAGE = "E0900"
    CACHE_REFUSED = "E0901"
    CACHE_CORRUPT = "E0902"
    OUTPUT_CHANGED = "E0903"
    REGISTRY = "E0904"

    TIMED_OUT = "E1001"

    INTERRUPTED = "E1300"
