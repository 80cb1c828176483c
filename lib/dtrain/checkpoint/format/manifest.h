// A checkpoint's manifest.json: tensors, files, the pieces of tensors in each file, and checksums
// (docs/formats/checkpoint.md).
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

/// The dtype and shape of a whole tensor, which may be stored in several pieces.
struct TensorInfo {
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;

  bool operator==(const TensorInfo&) const = default;
};

/// The part of a tensor that a file stores under the tensor's name.
struct PieceInfo {
  std::string tensor;
  Box box;
  std::uint64_t checksum = 0;  ///< XXH3 of the piece's bytes

  bool operator==(const PieceInfo&) const = default;
};

/// A data file and its pieces.
struct FileInfo {
  std::string name;  ///< within the checkpoint's folder
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< XXH3 of the whole file
  std::vector<PieceInfo> pieces;

  bool operator==(const FileInfo&) const = default;
};

/// The tensors and files of a complete checkpoint or of one rank's part.
struct Contents {
  std::map<std::string, TensorInfo> tensors;
  std::vector<FileInfo> files;

  bool operator==(const Contents&) const = default;
};

/// The decoded manifest.
struct Manifest {
  std::int64_t step = 0;         ///< finished steps
  std::int64_t samples = 0;      ///< consumed by all ranks: the position in the data
  std::int64_t tokens = 0;       ///< consumed by all ranks in the whole run
  std::string history = "{}";    ///< state of features such as --patience, a JSON object
  std::string run;               ///< ID of the start that wrote it: new_start_id of rank 0
  config::MeshShape mesh;        ///< mesh of the ranks that wrote it
  std::string config = "{}";     ///< the resolved configuration, a JSON object
  std::string data_fingerprint;  ///< identifies the data: data::to_text
  Contents contents;

  bool operator==(const Manifest&) const = default;
};

/// Returns the total bytes of the files.
[[nodiscard]] std::int64_t bytes_in(const Contents& contents);

/// Merges another rank's part into `all`.
///
/// Throws: Error{checkpoint} if a tensor has two shapes or dtypes. check_contents detects duplicate
///         files.
void merge(Contents& all, const Contents& part);

/// Checks that file names are plain, boxes lie within their tensors, and pieces cover each element
/// of each tensor exactly once.
///
/// where:  beginning of the error message.
/// Throws: Error{checkpoint} naming the tensor or file.
void check_contents(const Contents& contents, std::string_view where);

/// Serializes a manifest, beginning with the manifest's checksum. Inverse of parse_manifest except
/// for the formatting of `config`.
[[nodiscard]] std::string to_text(const Manifest& manifest);

/// Parses and checks manifest.json.
///
/// Throws: Error{checkpoint} naming `path` if it is damaged or of another version; as
///         check_contents.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& path);

/// Serialize and parse the report that a rank sends to rank 0, which writes the manifest.
[[nodiscard]] std::string to_text(const Contents& contents);
[[nodiscard]] Contents parse_contents(std::string_view text);

}  // namespace dtrain::checkpoint::format
