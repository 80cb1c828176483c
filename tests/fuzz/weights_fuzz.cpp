// Bytes as a file of torch.save: what is taken can be read to the last byte, everything else is
// refused.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dtrain/checkpoint/format/internal/torch_file.h"
#include "fuzz/outcome.h"

namespace {

namespace format = dtrain::checkpoint::format;
using dtrain::fuzz::require;

void read_all(std::span<const std::byte> bytes, const std::string& path) {
  const format::TorchWeights weights = format::read_torch_file(bytes, path);
  unsigned sum = 0;
  for (const format::TensorView& tensor : weights.tensors) {
    require(tensor.shape.size() == tensor.strides.size(), "each dim has a stride");
    std::int64_t count = 1;  // elements from the first to the last
    bool is_empty = false;
    for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      is_empty = is_empty || tensor.shape[dim] == 0;
    }
    for (std::size_t dim = 0; dim < tensor.shape.size() && !is_empty; ++dim) {
      count += (tensor.shape[dim] - 1) * tensor.strides[dim];
    }
    require((is_empty ? 0 : count * format::size_of(tensor.dtype)) == std::ssize(tensor.bytes),
            "bytes fit shape and strides");
    for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
  }
  require(sum <= 255U * weights.tensors.size() * bytes.size(), "all bytes lie in the file");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = "weights.pt";
  const auto bytes = std::as_bytes(std::span(data, size));
  dtrain::fuzz::parse_or_refuse(path, [&] { read_all(bytes, path); });
  return 0;
}
