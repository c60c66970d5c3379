# The demo behind `make demo`: every line is a command you can type.
set -e
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }
# Start a build beside what follows; its progress would tear other output.
behind() { printf '\n\033[1m$ %s &\033[0m\n' "$*"; "$@" --quiet > /dev/null & }

say trtkit doctor
behind trtkit build llama --set llm.kv=paged
llama=$!
say trtkit build efficientnet-lite0 --precision fp16
say trtkit build efficientnet-lite0 --precision fp16
say trtkit inspect bundles/efficientnet-lite0
say trtkit verify bundles/efficientnet-lite0 --trust-source --no-corners --html bundles/report.html
cat=$(python -c 'from trtkit.sources.package_file import resolve; print(resolve("package://skimage/data/chelsea.png"))')
say trtkit run bundles/efficientnet-lite0 "$cat" --output bundles/drawn
say trtkit build all-minilm-l6-v2
printf 'A kitten plays with wool.\nThe cat is chasing a toy.\nShares fell by three percent.\n' > bundles/sentences.txt
say trtkit run bundles/all-minilm-l6-v2 bundles/sentences.txt
say wait $llama
say trtkit build llama --set llm.kv=paged
behind trtkit build llama --set quantize.method=int8_wo -o bundles/llama-int8
int8=$!
say trtkit verify bundles/llama --no-corners
say trtkit generate bundles/llama "What is the capital of France?" --stats
say wait $int8
say trtkit eval bundles/llama-int8 --compare bundles/llama --perplexity README.md --windows 1
say trtkit simulate llama-3.1-8b --gpu h200 --kv paged --rate 30 --requests 500 --max-length 8192 --goodput ttft:1000

printf '\n\033[1m$ trtkit serve bundles/llama --quiet &\033[0m\n'
trtkit serve bundles/llama --quiet > bundles/serve.log 2>&1 &
server=$!
trap 'kill $server && wait $server' EXIT
until grep -qs 'Ctrl-C stops it' bundles/serve.log; do
  kill -0 $server 2> /dev/null || { cat bundles/serve.log; trap - EXIT; exit 1; }
  sleep 0.2
done
grep -v ': ' bundles/serve.log | tail -n 2
request='{"model": "llama", "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
printf "\n\033[1m$ curl -s localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '%s'\033[0m\n" "$request"
curl -s localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d "$request"
echo
