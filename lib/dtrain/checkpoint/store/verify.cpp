#include "dtrain/checkpoint/store/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/base/input_file.h"
#include "dtrain/checkpoint/store/names.h"

namespace dtrain::checkpoint::store {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;
constexpr std::int64_t kReadBytes = std::int64_t{1} << 20;

std::uint64_t checksum_of_file(const base::InputFile& file) {
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kReadBytes, file.size())));
  base::Checksum checksum;
  for (std::int64_t at = 0; at < file.size(); at += kReadBytes) {
    const auto chunk =
        std::span(buffer).first(static_cast<std::size_t>(std::min(kReadBytes, file.size() - at)));
    file.read(at, chunk);
    checksum.add(chunk);
  }
  return checksum.value();
}

// The first tensor whose bytes are not what was written; empty if the damage lies elsewhere.
std::string damaged_tensor(const std::string& path, const format::FileInfo& info) {
  const auto file = format::SafetensorsFile::open(path);
  for (const format::PieceInfo& piece : info.pieces) {
    if (base::checksum_of(file.at(piece.tensor).bytes) != piece.checksum) return piece.tensor;
  }
  return {};
}

}  // namespace

format::Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = fmt::format("{}/{}", checkpoint, kManifestName);
  const auto file = base::InputFile::open(path, kCheckpointFile);
  if (file.size() > kMaxManifestBytes) {
    fail(ErrorKind::checkpoint, "manifest '{}' is too large: {} bytes", path, file.size());
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return format::parse_manifest(text, path);
}

void verify_file(const std::string& checkpoint, const format::FileInfo& info) {
  const std::string path = checkpoint + "/" + info.name;
  const auto file = base::InputFile::open(path, kCheckpointFile);
  if (file.size() != info.bytes) {
    fail(ErrorKind::checkpoint, "checkpoint file '{}' has {} bytes, {} were written", path,
         file.size(), info.bytes);
  }
  const std::uint64_t found = checksum_of_file(file);
  if (found == info.checksum) return;
  const std::string tensor = damaged_tensor(path, info);
  fail(ErrorKind::checkpoint, "checkpoint file '{}' is damaged{}: its checksum is {}, expected {}",
       path, tensor.empty() ? "" : fmt::format(" in tensor '{}'", tensor),
       base::checksum_text(found), base::checksum_text(info.checksum));
}

}  // namespace dtrain::checkpoint::store
