"""Read the text on a page: PP-OCR's detector and recognizer from their bundles.

python examples/ocr/read_page.py page.png --det bundles/ppocr-det --rec bundles/ppocr-rec
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trtkit.inputs.images import read_image
from trtkit.runtime.model import open_model
from trtkit.runtime.page import page_reader, read_page


def main() -> None:
    """Print the text of an image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=Path)
    parser.add_argument("--det", type=Path, required=True, help="bundle of the detector")
    parser.add_argument("--rec", type=Path, required=True, help="bundle of the recognizer")
    parser.add_argument("--runtime", choices=["reference", "onnxruntime"], default="reference")
    options = parser.parse_args()
    detector, recognizer = (open_model(path, options.runtime) for path in (options.det, options.rec))
    reader = page_reader(detector.bundle, recognizer.bundle)
    found = read_page(reader, read_image(options.image), detector, recognizer)
    print("\n".join(line.decode() for line in found["text"]))


if __name__ == "__main__":
    main()
