// manifest.json of a checkpoint: what it holds, where each piece lies, and the checksums of all of
// it (docs/formats/checkpoint.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/checkpoint/format/box.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/config/values/mesh_shape.h"

namespace dtrain::checkpoint::format {

/// A whole tensor, however it is cut.
struct TensorInfo {
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;

  bool operator==(const TensorInfo&) const = default;
};

/// The part of a tensor that a file holds under the tensor's name.
struct PieceInfo {
  std::string tensor;
  Box box;
  std::uint64_t checksum = 0;  ///< of its bytes

  bool operator==(const PieceInfo&) const = default;
};

struct FileInfo {
  std::string name;  ///< within the checkpoint's folder
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< of the whole file
  std::vector<PieceInfo> pieces;

  bool operator==(const FileInfo&) const = default;
};

/// Files and what they hold: of a whole checkpoint, or what one rank has written.
struct Contents {
  std::map<std::string, TensorInfo> tensors;
  std::vector<FileInfo> files;

  bool operator==(const Contents&) const = default;
};

struct Manifest {
  std::int64_t step = 0;         ///< updates done
  std::int64_t samples = 0;      ///< consumed by all ranks: the position in the data
  std::int64_t tokens = 0;       ///< the same in tokens
  std::string history = "{}";    ///< what later decisions of the run follow from, a JSON object
  std::string run;               ///< which start of the program wrote it
  config::MeshShape mesh;        ///< of the ranks that wrote it
  std::string config = "{}";     ///< the resolved configuration, a JSON object
  std::string data_fingerprint;  ///< tells whether the data is the same
  Contents contents;

  bool operator==(const Manifest&) const = default;
};

/// Returns the bytes of all files.
[[nodiscard]] std::int64_t bytes_in(const Contents& contents);

/// Adds what another rank has written.
///
/// Throws: Error{checkpoint} if a tensor has two shapes or dtypes. A file of two writers is left to
///         check_contents.
void merge(Contents& all, const Contents& part);

/// Throws: Error{checkpoint} naming the tensor or file, in the words of `where`, unless file names
///         are plain, boxes lie in their tensors, and each element of each tensor is there once.
void check_contents(const Contents& contents, std::string_view where);

/// manifest.json, its own checksum in front. The inverse of parse_manifest up to the spelling of
/// `config`.
[[nodiscard]] std::string to_text(const Manifest& manifest);

/// Throws: Error{checkpoint} naming `path` and what is wrong: damaged, of another version, or
///         contents as check_contents.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& path);

/// The text in which a rank reports to the one that writes the manifest, and its inverse.
[[nodiscard]] std::string to_text(const Contents& contents);
[[nodiscard]] Contents parse_contents(std::string_view text);

}  // namespace dtrain::checkpoint::format
