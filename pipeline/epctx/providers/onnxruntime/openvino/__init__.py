"""Intel's OpenVINO execution provider."""
