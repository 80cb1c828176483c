// Lists the uncompressed entries of a zip archive, the only kind that torch.save writes.
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
  std::uint32_t crc = 0;  ///< CRC-32 of the bytes; 0: the writer computed none
};

/// Lists the entries of the archive in `bytes` as views of it. Skips compressed entries.
///
/// Throws: calls `refuse`, which throws, if the archive is truncated or malformed.
[[nodiscard]] std::vector<ZipEntry> zip_entries(std::span<const std::byte> bytes,
                                                const Refuse& refuse);

/// Reads all entries and compares their CRC-32s. Returns false if an entry has none.
///
/// Throws: as zip_entries, and if a checksum does not match.
[[nodiscard]] bool verify_crcs(std::span<const std::byte> bytes, const Refuse& refuse);

}  // namespace dtrain::checkpoint::format
