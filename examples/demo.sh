# The demo behind `make demo`: every line is a command you can type.
set -e
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

say trtkit doctor
say trtkit build --config ppocr-rec --out bundles/ppocr-rec
say trtkit inspect bundles/ppocr-rec
say trtkit build --config ppocr-rec --out bundles/ppocr-rec
