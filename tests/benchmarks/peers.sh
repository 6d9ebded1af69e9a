# Environments of the tools beside which the benchmarks measure denserk, and of those that pages of
# docs/howto use it in: their dependencies conflict with each other's and with denserk's.
#
#   bash tests/benchmarks/peers.sh [FOLDER [NAME ...]]
#
# Makes FOLDER/NAME for each NAME that is not there yet, or is of another Python or other packages;
# by default those of the benchmarks, below build/peers. The Python that runs denserk, and its
# PyTorch, are used. pip's own variables are honoured. langchain, llamaindex, haystack and snakemake
# see all packages of that Python, too.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

folder=${1:-$repository/build/peers}
names=("${@:2}")
if [ ${#names[@]} -eq 0 ]; then
  names=(openvino onnx fastembed ctranslate2)
fi

packages_of() {
  case $1 in
    openvino) echo 'sentence-transformers[openvino]' optimum-intel datasets ;;
    onnx) echo 'sentence-transformers[onnx]' optimum-onnx onnxruntime ;;
    fastembed) echo fastembed ;;
    ctranslate2) echo ctranslate2 tokenizers transformers torch ;;
    langchain) echo langchain-core==1.8.3 ;;
    llamaindex) echo llama-index-core==0.14.25 ;;
    haystack) echo haystack-ai==3.4.1 ;;
    snakemake) echo snakemake==9.27.1 ;;
    *)
      echo "error: no peer is named $1" >&2
      return 1
      ;;
  esac
}

needs_torch() {
  [ "$1" != fastembed ] && ! uses_denserk "$1"
}

uses_denserk() {
  case $1 in langchain | llamaindex | haystack | snakemake) ;; *) return 1 ;; esac
}

# Adds the packages of the Python $2 behind those of the environment $1, with what its own .pth files add.
add_packages_of() {
  local packages site_packages
  packages=$("$2" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  site_packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "import site; site.addsitedir('$packages')" >"$site_packages/denserk-python.pth"
}

# Links the installed PyTorch of the folder $2 into the environment $1: it is as large as all else.
link_torch() {
  local site_packages path
  site_packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for path in "$2"/torch "$2"/torchgen "$2"/functorch "$2"/torch-*.dist-info; do
    ln -s "$path" "$site_packages/"
  done
}

python=${PYTHON:-$(command -v python3)}
for name in "${names[@]}"; do
  packages=$(packages_of "$name")
  environment=$folder/$name
  content="$packages, $("$python" -V), $python"
  if [ "$(cat "$environment/installed" 2>/dev/null)" = "$content" ]; then
    continue
  fi
  echo "Making $environment: $packages" >&2
  "$python" -m venv --clear "$environment"
  if uses_denserk "$name"; then
    add_packages_of "$environment" "$python"
  fi
  torch=$(installed_torch "$python")
  pip=("$environment/bin/python" -m pip --disable-pip-version-check --no-input)
  constraint=()
  if needs_torch "$name" && [ -n "$torch" ]; then
    link_torch "$environment" "${torch#* }"
    echo "torch==${torch%% *}" >"$environment/constraints.txt"
    constraint=(-c "$environment/constraints.txt")
  fi
  # shellcheck disable=SC2086  (several packages)
  "${pip[@]}" install -qq "${constraint[@]}" $packages
  # optimum-intel asks for it for models of images, and it does not load beside a PyTorch for CPUs
  uses_denserk "$name" || "${pip[@]}" uninstall -qq --yes torchvision 2>/dev/null || true
  echo "$content" >"$environment/installed"
done
