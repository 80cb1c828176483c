// The checksum of a model file, in the file's own metadata.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {

/// Metadata key of "xxh3 0123456789abcdef": XXH3 of the whole file with zeros as its digits. Other
/// readers of safetensors ignore the key.
inline constexpr const char* kChecksumKey = "dtrain.checksum";
inline constexpr std::string_view kBlankChecksum = "xxh3 0000000000000000";

/// Where the digits begin in a header whose metadata has `value`; npos: nowhere.
[[nodiscard]] std::size_t find_checksum_digits(std::string_view header, std::string_view value);

/// Reads all of the file. Returns false if it has no checksum, as files of other writers.
///
/// Throws:  Error{checkpoint} naming the file if it is damaged.
/// Threads: any number of callers.
[[nodiscard]] bool verify_checksum(const SafetensorsFile& file);

}  // namespace dtrain::checkpoint::format
