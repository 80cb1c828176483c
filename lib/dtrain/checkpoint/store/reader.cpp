#include "dtrain/checkpoint/store/reader.h"

#include <fmt/format.h>

#include <utility>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/checkpoint/store/names.h"

namespace dtrain::checkpoint::store {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;

// Returns the first tensor with damaged bytes; empty if the damage is elsewhere.
std::string damaged_tensor(const std::string& path, const format::FileInfo& info) {
  const auto file = format::SafetensorsFile::open(path);
  for (const format::PieceInfo& piece : info.pieces) {
    if (base::checksum_of(file.at(piece.tensor).bytes) != piece.checksum) return piece.tensor;
  }
  return {};
}

// Returns where each piece's bytes begin; checks dtypes and shapes against the manifest.
std::map<std::string, std::int64_t> offsets_of(const std::string& path,
                                               const format::FileInfo& info,
                                               const format::Contents& contents) {
  const auto file = format::SafetensorsFile::open(path);
  std::map<std::string, std::int64_t> offsets;
  for (const format::PieceInfo& piece : info.pieces) {
    const format::TensorView& view = file.at(piece.tensor);
    if (view.dtype != contents.tensors.at(piece.tensor).dtype || view.shape != piece.box.sizes) {
      fail(ErrorKind::checkpoint, "checkpoint file '{}' contradicts its manifest on tensor '{}'",
           path, piece.tensor);
    }
    offsets[piece.tensor] = view.bytes.data() - file.bytes().data();
  }
  return offsets;
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

void with_fallback_hint(std::span<const std::string> checkpoints,
                        const std::function<void()>& open) {
  try {
    open();
  } catch (const base::StorageError&) {
    throw;  // it may be intact
  } catch (const base::Error& error) {
    if (error.kind() != ErrorKind::checkpoint || checkpoints.size() < 2) throw;
    base::fail(ErrorKind::checkpoint, "{}; the next older checkpoint of the run is {}",
               error.what(), checkpoints[1]);
  }
}

void verify_file(const std::string& checkpoint, const format::FileInfo& info) {
  const std::string path = checkpoint + "/" + info.name;
  const auto file = base::InputFile::open(path, kCheckpointFile);
  if (file.size() != info.bytes) {
    fail(ErrorKind::checkpoint, "checkpoint file '{}' has {} bytes, but {} were written", path,
         file.size(), info.bytes);
  }
  base::Checksum checksum;
  file.read_in_pieces(0, file.size(), [&](auto piece) { checksum.add(piece); });
  const std::uint64_t found = checksum.value();
  if (found == info.checksum) return;
  const std::string tensor = damaged_tensor(path, info);
  fail(ErrorKind::checkpoint, "checkpoint file '{}' is damaged{}: its checksum is {}, expected {}",
       path, tensor.empty() ? "" : fmt::format(" in tensor '{}'", tensor),
       base::checksum_text(found), base::checksum_text(info.checksum));
}

Reader::Reader(std::string checkpoint) : Reader(checkpoint, read_manifest(checkpoint)) {}

Reader::Reader(std::string checkpoint, format::Manifest manifest)
    : checkpoint_(std::move(checkpoint)), manifest_(std::move(manifest)) {
  for (std::size_t index = 0; index < manifest_.contents.files.size(); ++index) {
    for (const format::PieceInfo& piece : manifest_.contents.files[index].pieces) {
      locations_[piece.tensor].push_back({.file = index, .piece = &piece});
    }
  }
}

const format::TensorInfo* Reader::find(const std::string& tensor) const {
  const auto found = manifest_.contents.tensors.find(tensor);
  return found == manifest_.contents.tensors.end() ? nullptr : &found->second;
}

void Reader::open_files_of(std::string_view tensor_prefix) {
  for (const auto& [tensor, places] : locations_) {
    if (!tensor.starts_with(tensor_prefix)) continue;
    for (const PieceLocation& place : places) (void)open_file(place.file);
  }
}

void Reader::read(const std::string& tensor, const format::Box& box, std::span<std::byte> to) {
  const format::TensorInfo& info = manifest_.contents.tensors.at(tensor);
  const std::int64_t width = format::size_of(info.dtype);
  DTRAIN_CHECK(format::fits(box, info.shape), "a box outside of tensor '{}'", tensor);
  DTRAIN_CHECK(format::num_elements(box.sizes) * width == static_cast<std::int64_t>(to.size()));
  for (const PieceLocation& place : locations_[tensor]) {
    for (const format::CommonRun& run : format::common_runs(place.piece->box, box)) {
      OpenFile& file = open_file(place.file);
      const auto part = to.subspan(static_cast<std::size_t>(run.in_b * width),
                                   static_cast<std::size_t>(run.count * width));
      file.input.read(file.offsets.at(tensor) + run.in_a * width, part);
      bytes_read_ += run.count * width;
    }
  }
}

Reader::OpenFile& Reader::open_file(std::size_t index) {
  const auto found = files_.find(index);
  if (found != files_.end()) return found->second;
  const format::FileInfo& info = manifest_.contents.files[index];
  const std::string path = checkpoint_ + "/" + info.name;
  OpenFile file{.input = base::InputFile::open(path, kCheckpointFile),
                .offsets = offsets_of(path, info, manifest_.contents)};
  return files_.emplace(index, std::move(file)).first->second;
}

}  // namespace dtrain::checkpoint::store
