// The uncompressed entries of a zip archive; torch.save writes no others.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/checkpoint/format/strict_json.h"

namespace dtrain::checkpoint::format {

struct ZipEntry {
  std::string_view name;
  std::span<const std::byte> bytes;
};

/// The entries of the archive in `bytes`, in whose memory they lie. Compressed ones are passed over.
///
/// Throws: what `refuse` throws: the archive is truncated or malformed.
[[nodiscard]] std::vector<ZipEntry> zip_entries(std::span<const std::byte> bytes,
                                                const Refuse& refuse);

}  // namespace dtrain::checkpoint::format
