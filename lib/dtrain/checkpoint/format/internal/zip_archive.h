// The uncompressed entries of a zip archive; torch.save writes no others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/checkpoint/format/internal/strict_json.h"

namespace dtrain::checkpoint::format {

struct ZipEntry {
  std::string_view name;
  std::span<const std::byte> bytes;
  std::uint32_t crc = 0;  ///< CRC-32 of the bytes; 0: the writer computed none
};

/// The entries of the archive in `bytes`, in whose memory they lie. Compressed ones are passed over.
///
/// Throws: what `refuse` throws: the archive is truncated or malformed.
[[nodiscard]] std::vector<ZipEntry> zip_entries(std::span<const std::byte> bytes,
                                                const Refuse& refuse);

/// Reads all entries. Returns false if one has no checksum.
///
/// Throws: what `refuse` throws, as zip_entries, and where an entry has not its checksum.
[[nodiscard]] bool verify_crcs(std::span<const std::byte> bytes, const Refuse& refuse);

}  // namespace dtrain::checkpoint::format
