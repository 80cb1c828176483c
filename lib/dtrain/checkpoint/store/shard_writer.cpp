#include "dtrain/checkpoint/store/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "dtrain/base/checksum.h"
#include "dtrain/checkpoint/format/weight_file.h"

namespace dtrain::checkpoint::store {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1}
                                    << 20;  // small enough to be checksummed in cache

// Files are keyed by the part of the name before the first dot, and by the tensor's occurrence
// count.
using FileKey = std::pair<std::string, std::size_t>;
using Pieces = std::vector<const PieceBytes*>;

std::map<FileKey, Pieces> by_file(std::span<const PieceBytes> pieces) {
  std::map<std::string, std::size_t> seen;
  std::map<FileKey, Pieces> files;
  for (const PieceBytes& piece : pieces) {
    const std::string kind = piece.tensor.substr(0, piece.tensor.find('.'));
    files[{kind, seen[piece.tensor]++}].push_back(&piece);
  }
  return files;
}

std::string file_name(const FileKey& key, const Shard& shard) {
  const auto& [kind, part] = key;
  const std::string suffix = part == 0 ? "" : fmt::format("-part{}", part + 1);
  return fmt::format("{}-{:05}-of-{:05}{}.safetensors", kind, shard.rank + 1, shard.num_ranks,
                     suffix);
}

// Metadata for torch.distributed.checkpoint, and the global shapes for other readers.
format::Metadata metadata_of(const Pieces& pieces) {
  nlohmann::json offsets = nlohmann::json::object();
  nlohmann::json shapes = nlohmann::json::object();
  for (const PieceBytes* piece : pieces) {
    offsets[piece->tensor] = {{"saved_offsets", piece->box.offsets}};
    shapes[piece->tensor] = piece->shape;
  }
  return {{"format", "pt"},
          {"DCP_VERSION", "1.0"},
          {"DCP_SHARDING_INFO", offsets.dump()},
          {format::kShapesKey, shapes.dump()}};
}

format::FileInfo write_file(base::FileSystem& files, const std::string& folder, std::string name,
                            const Pieces& pieces, RateLimiter& limiter) {
  std::vector<format::TensorView> views;
  for (const PieceBytes* piece : pieces) {
    views.push_back({piece->tensor, piece->dtype, piece->box.sizes, piece->bytes});
  }
  const format::FilePlan plan = format::plan_safetensors(views, metadata_of(pieces));
  format::FileInfo info{.name = std::move(name), .bytes = 0, .checksum = 0, .pieces = {}};
  base::write_with_retries(files, folder + "/" + info.name, [&](base::OutputFile& file) {
    base::Checksum all;
    info.bytes = 0;
    info.pieces.clear();
    // Writes bytes and returns their own checksum.
    const auto write = [&](std::span<const std::byte> bytes) {
      base::Checksum own;
      info.bytes += std::ssize(bytes);
      while (!bytes.empty()) {
        const auto chunk = bytes.first(std::min(bytes.size(), kChunkBytes));
        limiter.acquire(std::ssize(chunk));
        own.add(chunk);
        all.add(chunk);
        file.write(chunk);
        bytes = bytes.subspan(chunk.size());
      }
      return own.value();
    };
    (void)write(std::as_bytes(std::span(plan.header)));
    for (const std::size_t index : plan.order) {
      const PieceBytes& piece = *pieces[index];
      info.pieces.push_back({piece.tensor, piece.box, write(piece.bytes)});
    }
    info.checksum = all.value();
  });
  return info;
}

}  // namespace

void RateLimiter::acquire(std::int64_t bytes) {
  constexpr double kLongestSleep = 0.05;  // seconds
  acquired_ += bytes;
  for (;;) {
    if (stop_.stop_requested()) throw SaveCancelled();
    if (bytes_per_second_ == 0 || (unlimited_ != nullptr && *unlimited_)) return;
    const double due = static_cast<double>(acquired_) / bytes_per_second_;
    const double left = due - base::seconds_since(start_);
    if (left <= 0) return;
    std::this_thread::sleep_for(base::Seconds(std::min(left, kLongestSleep)));
  }
}

format::Contents write_shard(base::FileSystem& files, const Shard& shard,
                             std::span<const PieceBytes> pieces, RateLimiter limiter) {
  format::Contents contents;
  for (const PieceBytes& piece : pieces) {
    contents.tensors[piece.tensor] = {.dtype = piece.dtype, .shape = piece.shape};
  }
  for (const auto& [key, group] : by_file(pieces)) {
    contents.files.push_back(
        write_file(files, shard.folder, file_name(key, shard), group, limiter));
  }
  return contents;
}

}  // namespace dtrain::checkpoint::store
