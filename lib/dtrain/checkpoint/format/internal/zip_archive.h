// Lists the uncompressed entries of a zip archive; torch.save writes no others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/checkpoint/format/internal/strict_json.h"

namespace dtrain::checkpoint::format {

/// One stored file of an archive.
struct ZipEntry {
  std::string_view name;
  std::span<const std::byte> bytes;
  std::uint32_t crc = 0;  ///< CRC-32 of the bytes; 0: not computed by the writer
};

/// Lists the entries of the archive as views of `bytes`. Skips compressed entries.
///
/// Throws: calls `refuse`, which throws, if the archive is truncated or malformed.
[[nodiscard]] std::vector<ZipEntry> zip_entries(std::span<const std::byte> bytes,
                                                const Refuse& refuse);

/// Reads all entries and verifies their CRC-32 checksums. Returns false if an entry has none.
///
/// Throws: as zip_entries, and if a checksum does not match.
[[nodiscard]] bool verify_crcs(std::span<const std::byte> bytes, const Refuse& refuse);

}  // namespace dtrain::checkpoint::format
