#include "dtrain/checkpoint/format/file_checksum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"

namespace dtrain::checkpoint::format {
namespace {

constexpr std::string_view kOwnKeys = "dtrain.";

}  // namespace

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
  base::fail(base::ErrorKind::checkpoint,
             "model file '{}' has not the checksum that dtrain wrote: {}, expected {}; it is "
             "damaged: take another copy, or export it again from a checkpoint; or another program "
             "changed it: remove the metadata key {}",
             file.path(), text, found->second, kChecksumKey);
}

}  // namespace dtrain::checkpoint::format
