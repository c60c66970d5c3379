# The demo behind `make demo`: every line is a command you can type.
set -e
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

say trtkit doctor
say trtkit build --config efficientnet-lite0 --set precision=fp16
say trtkit build --config efficientnet-lite0 --set precision=fp16
say trtkit inspect bundles/efficientnet-lite0
say trtkit verify bundles/efficientnet-lite0 --no-corners --html bundles/report.html
say trtkit build --config llama
say trtkit verify bundles/llama --no-corners
say trtkit generate bundles/llama --prompt "What is the capital of France?" --stats
