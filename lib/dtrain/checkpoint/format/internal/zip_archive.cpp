#include "dtrain/checkpoint/format/internal/zip_archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "dtrain/base/text/text.h"

namespace dtrain::checkpoint::format {
namespace {

constexpr std::uint32_t kEndOfDirectory = 0x06054b50;
constexpr std::uint32_t kWideLocator = 0x07064b50;
constexpr std::uint32_t kWideEnd = 0x06064b50;
constexpr std::uint32_t kDirectoryEntry = 0x02014b50;
constexpr std::uint32_t kLocalEntry = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22;  // without the comment
constexpr std::uint64_t kMostComment = 0xffff;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::string_view kMisplaced = "the zip directory is not at its recorded position";
constexpr std::uint16_t kStored = 0;           // method of compression: none
constexpr std::uint16_t kWideExtra = 1;        // id of the field with 64-bit sizes
constexpr std::uint32_t kIsWide = 0xffffffff;  // the size is in that field

/// Reads the directory of an archive.
///
/// Source: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 (local header) to 4.3.16, and 4.5.3.
class ZipReader {
 public:
  ZipReader(std::span<const std::byte> bytes, const Refuse& refuse)
      : bytes_(bytes), refuse_(refuse) {}

  std::vector<ZipEntry> read() {
    const Directory directory = find_directory();
    std::vector<ZipEntry> entries;
    std::uint64_t at = directory.offset;
    for (std::uint64_t i = 0; i < directory.count; ++i) at = read_entry(at, entries);
    // If a file holds two archives, the second directory would yield bytes of the first archive.
    if (at != directory.end) refuse_damage(kMisplaced);
    // Overlapping entries would let a small file cause millions of reads of the same bytes.
    std::uint64_t total = 0;  // no overflow: each is at most the file's size
    for (const ZipEntry& entry : entries) {
      total += entry.bytes.size();
      if (total > bytes_.size()) refuse_damage("zip entries overlap");
    }
    return entries;
  }

 private:
  struct Directory {
    std::uint64_t count;
    std::uint64_t offset;
    std::uint64_t end;  // of its entries, where the record that names it stands
  };

  [[noreturn]] void refuse_damage(std::string_view what) const {
    refuse_(fmt::format("is truncated or damaged: {}; copy it again", what));
    __builtin_unreachable();
  }

  [[nodiscard]] std::span<const std::byte> part(std::uint64_t offset, std::uint64_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      refuse_damage("a zip offset points beyond the end of the file");
    }
    return bytes_.subspan(offset, size);
  }

  template <typename T>
  [[nodiscard]] T load(std::uint64_t offset) const {
    T value;
    std::memcpy(&value, part(offset, sizeof(T)).data(), sizeof(T));
    return value;
  }

  [[nodiscard]] Directory find_directory() const {
    const std::uint64_t size = bytes_.size();
    const std::uint64_t most = std::min(size, kEndBytes + kMostComment);
    for (std::uint64_t back = kEndBytes; back <= most; ++back) {
      const std::uint64_t at = size - back;
      if (load<std::uint32_t>(at) != kEndOfDirectory) continue;
      if (const auto wide = find_wide_directory(at)) return *wide;
      return {load<std::uint16_t>(at + 10), load<std::uint32_t>(at + 16), at};
    }
    refuse_damage("the end record of the zip archive is missing");
  }

  // Reads the zip64 directory, which archives above 4 GB or 65535 entries need and PyTorch always
  // writes.
  [[nodiscard]] std::optional<Directory> find_wide_directory(std::uint64_t end) const {
    if (end < kLocatorBytes) return std::nullopt;
    const std::uint64_t locator = end - kLocatorBytes;
    if (load<std::uint32_t>(locator) != kWideLocator) return std::nullopt;
    const auto at = load<std::uint64_t>(locator + 8);
    if (load<std::uint32_t>(at) != kWideEnd) refuse_damage("the zip64 end record is missing");
    constexpr std::uint64_t kSizedAfter = 12;  // the record's own size counts what follows it
    if (at + kSizedAfter + load<std::uint64_t>(at + 4) != locator) refuse_damage(kMisplaced);
    return {{load<std::uint64_t>(at + 32), load<std::uint64_t>(at + 48), at}};
  }

  // Replaces the sizes that are stored in the extra field at `at`.
  void read_wide_sizes(std::uint64_t at, std::uint64_t length,
                       std::span<std::uint64_t* const> sizes) const {
    const std::uint64_t end = at + length;
    while (at + 4 <= end) {
      const auto id = load<std::uint16_t>(at);
      const auto field_bytes = load<std::uint16_t>(at + 2);
      if (id == kWideExtra) {
        std::uint64_t field = at + 4;
        for (std::uint64_t* const size : sizes) {
          if (*size != kIsWide) continue;
          *size = load<std::uint64_t>(field);
          field += sizeof(std::uint64_t);
        }
        return;
      }
      at += 4U + field_bytes;
    }
  }

  // Reads a directory entry; returns the offset of the next one.
  std::uint64_t read_entry(std::uint64_t at, std::vector<ZipEntry>& entries) const {
    constexpr std::uint64_t kHeader = 46;
    if (load<std::uint32_t>(at) != kDirectoryEntry)
      refuse_damage("a zip directory entry has the wrong signature");
    const auto name_bytes = load<std::uint16_t>(at + 28);
    const auto extra_bytes = load<std::uint16_t>(at + 30);
    const auto comment_bytes = load<std::uint16_t>(at + 32);
    const auto raw_name = part(at + kHeader, name_bytes);
    const std::string_view name(reinterpret_cast<const char*>(raw_name.data()), raw_name.size());
    std::uint64_t size = load<std::uint32_t>(at + 24);
    std::uint64_t stored = load<std::uint32_t>(at + 20);
    std::uint64_t local = load<std::uint32_t>(at + 42);
    std::uint64_t* const sizes[] = {&size, &stored, &local};
    read_wide_sizes(at + kHeader + name_bytes, extra_bytes, sizes);
    const std::uint64_t next = at + kHeader + name_bytes + extra_bytes + comment_bytes;
    if (load<std::uint16_t>(at + 10) != kStored || size != stored) return next;
    if (load<std::uint32_t>(local) != kLocalEntry)
      refuse_damage("a zip entry has the wrong signature");
    const std::uint64_t begin =
        local + 30 + load<std::uint16_t>(local + 26) + load<std::uint16_t>(local + 28);
    entries.push_back({name, part(begin, size), load<std::uint32_t>(at + 16)});
    return next;
  }

  std::span<const std::byte> bytes_;
  const Refuse& refuse_;
};

}  // namespace

std::vector<ZipEntry> zip_entries(std::span<const std::byte> bytes, const Refuse& refuse) {
  return ZipReader(bytes, refuse).read();
}

bool verify_crcs(std::span<const std::byte> bytes, const Refuse& refuse) {
  bool have_all = true;
  for (const ZipEntry& entry : zip_entries(bytes, refuse)) {
    const auto* const begin = reinterpret_cast<const Bytef*>(entry.bytes.data());
    const auto found = static_cast<std::uint32_t>(::crc32_z(0, begin, entry.bytes.size()));
    if (entry.crc == found) continue;
    // PyTorch's set_crc32_options(False) writes zeros.
    if (entry.crc != 0) {
      refuse(
          fmt::format("is damaged: its '{}' has the CRC-32 {:08x}, expected {:08x}; copy it again",
                      base::printable(entry.name), found, entry.crc));
    }
    have_all = false;
  }
  return have_all;
}

}  // namespace dtrain::checkpoint::format
