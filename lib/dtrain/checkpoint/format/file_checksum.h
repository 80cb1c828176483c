// The checksum of a model file, in the file's own metadata.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {

/// Metadata key of "xxh3 0123456789abcdef": a checksum of the tensors and of dtrain's own metadata.
/// Other readers of safetensors ignore the key, and may keep it when they write the tensors anew.
inline constexpr const char* kChecksumKey = "dtrain.checksum";
inline constexpr std::string_view kBlankChecksum = "xxh3 0000000000000000";

/// The checksum of tensors that come one at a time. Neither their order nor the layout of the
/// file's header changes it.
///
/// Threads: one caller.
class ContentChecksum {
 public:
  /// Name, dtype and shape of `tensor`, and its bytes.
  void add(const TensorView& tensor, std::span<const std::byte> bytes);
  /// The value of kChecksumKey in a file of these tensors with `metadata`, which may have the key.
  [[nodiscard]] std::string text(const Metadata& metadata) const;

 private:
  std::map<std::string, std::string> tensors_;  // by name
};

/// Where the value of kChecksumKey begins in a header of plan_safetensors whose metadata has it.
[[nodiscard]] std::size_t find_checksum(std::string_view header);

/// Reads all tensors. Returns false if the file has no checksum, as files of other writers.
///
/// Throws:  Error{checkpoint} naming the file if its content is not what dtrain wrote.
/// Threads: any number of callers.
[[nodiscard]] bool verify_checksum(const SafetensorsFile& file);

}  // namespace dtrain::checkpoint::format
