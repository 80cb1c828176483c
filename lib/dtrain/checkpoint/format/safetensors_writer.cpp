#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {

namespace {

constexpr std::size_t kDataAlignment = 64;
constexpr std::string_view kOwnKeys = "dtrain.";

void check_tensors(std::span<const TensorView> tensors) {
  std::set<std::string_view> names{"__metadata__"};
  for (const TensorView& tensor : tensors) {
    DTRAIN_CHECK(names.insert(tensor.name).second, "tensor name '{}' is reserved or used twice",
                 tensor.name);
    DTRAIN_CHECK(bytes_of(tensor.dtype, tensor.shape) == std::ssize(tensor.bytes),
                 "tensor '{}' has {} bytes, which does not match its dtype and shape", tensor.name,
                 tensor.bytes.size());
  }
}

// Wider dtypes first: aligns every tensor to its elements without padding, which the format
// forbids.
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
  // Metadata may contain file names, which need not be UTF-8.
  std::string json = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::size_t total =
      (kLengthBytes + json.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  json.resize(total - kLengthBytes, ' ');  // aligns the data
  const std::uint64_t length = json.size();
  plan.header.assign(reinterpret_cast<const char*>(&length), kLengthBytes);
  plan.header += json;
  return plan;
}

void ContentChecksum::add(const TensorView& tensor, std::span<const std::byte> bytes) {
  tensors_[tensor.name] =
      fmt::format("{} ({}) {}", name_of(tensor.dtype), fmt::join(tensor.shape, ", "),
                  base::checksum_text(base::checksum_of(bytes)));
}

std::string ContentChecksum::text(const Metadata& metadata) const {
  std::string content;
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(kOwnKeys) && key != kChecksumKey) {
      content += fmt::format("{} {}\n", key, value);
    }
  }
  for (const auto& [name, facts] : tensors_) content += fmt::format("{} {}\n", name, facts);
  return "xxh3 " + base::checksum_text(base::checksum_of(content));
}

std::size_t find_checksum(std::string_view header) {
  const std::string before = fmt::format("\"{}\":\"", kChecksumKey);
  const std::size_t found = header.find(before);
  DTRAIN_CHECK(found != header.npos);
  return found + before.size();
}

bool verify_checksum(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kChecksumKey);
  if (found == file.metadata().end()) return false;
  ContentChecksum content;
  for (const TensorView& tensor : file.tensors()) content.add(tensor, tensor.bytes);
  const std::string text = content.text(file.metadata());
  if (found->second == text) return true;
  base::fail(
      base::ErrorKind::checkpoint,
      "model file '{}' has checksum {}, but dtrain recorded {}; if it is damaged, take another "
      "copy or export it again from a checkpoint; if another program changed it, remove the "
      "metadata key {}",
      file.path(), text, found->second, kChecksumKey);
}

}  // namespace dtrain::checkpoint::format
