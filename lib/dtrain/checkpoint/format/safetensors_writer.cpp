#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {

namespace {

constexpr std::size_t kDataAlignment = 64;

void check_tensors(std::span<const TensorView> tensors) {
  std::set<std::string_view> names{"__metadata__"};
  for (const TensorView& tensor : tensors) {
    DTRAIN_CHECK(names.insert(tensor.name).second, "tensor name '{}' twice or reserved",
                 tensor.name);
    std::int64_t num_bytes = size_of(tensor.dtype);
    for (const std::int64_t size : tensor.shape) num_bytes *= size;
    DTRAIN_CHECK(num_bytes == static_cast<std::int64_t>(tensor.bytes.size()),
                 "tensor '{}' has {} bytes, its shape needs {}", tensor.name, tensor.bytes.size(),
                 num_bytes);
  }
}

// Wider dtypes first, so that every tensor is aligned to its elements although nothing may lie
// between tensors.
std::vector<std::size_t> file_order(std::span<const TensorView> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors[a].dtype) > size_of(tensors[b].dtype);
  });
  return order;
}

}  // namespace

FilePlan plan_safetensors(std::span<const TensorView> tensors, const Metadata& metadata) {
  check_tensors(tensors);
  FilePlan plan{.header = {}, .order = file_order(tensors)};
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const std::size_t index : plan.order) {
    const TensorView& tensor = tensors[index];
    const std::size_t end = offset + tensor.bytes.size();
    header[tensor.name] = {
        {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  // Metadata may hold file names, which are not always UTF-8.
  std::string json = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::size_t total =
      (kLengthBytes + json.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  json.resize(total - kLengthBytes, ' ');  // so that what follows is aligned
  const std::uint64_t length = json.size();
  plan.header.assign(reinterpret_cast<const char*>(&length), kLengthBytes);
  plan.header += json;
  return plan;
}

}  // namespace dtrain::checkpoint::format
