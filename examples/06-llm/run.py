"""Build the models of an onnxruntime-genai folder, and generate tokens with them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import epctx

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def main() -> None:
    source = HERE / "models" / "llama"
    if (ROOT / "scripts" / "genai_folder.py").is_file():
        command = [sys.executable, "-m", "scripts.genai_folder", str(source)]
        subprocess.run(command, cwd=ROOT, check=True)
    elif not source.is_dir():
        sys.exit(f"put a model folder by onnxruntime-genai's model builder at {source}")

    report = epctx.package(HERE / "epctx.yaml", out=HERE / "dist")
    package = HERE / "dist" / report.path
    for path in sorted(p for p in package.rglob("*") if p.is_file()):
        print(f"{path.stat().st_size:9} {path.relative_to(package).as_posix()}")

    if importlib.util.find_spec("onnxruntime_genai") is None:
        print("pip install onnxruntime-genai to generate with it")
        return
    built, expected = generate(package / "cpu" / "llm"), generate(source)
    print(
        f"tokens: {built}, {'the same as' if built == expected else 'different from'} the source's"
    )


def generate(folder: Path, prompt: str = "Good morning", count: int = 16) -> list[int]:
    import onnxruntime_genai as og

    model = og.Model(str(folder))
    generator = og.Generator(model, og.GeneratorParams(model))
    generator.append_tokens(og.Tokenizer(model).encode(prompt))
    tokens: list[int] = []
    while len(tokens) < count and not generator.is_done():
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    return tokens


if __name__ == "__main__":
    main()
