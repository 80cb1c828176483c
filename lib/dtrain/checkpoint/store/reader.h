// Reads checkpoints: the manifest, whole files to verify them, any part of any tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/input_file.h"
#include "dtrain/checkpoint/format/manifest.h"

namespace dtrain::checkpoint::store {

inline constexpr base::FileRole kCheckpointFile{base::ErrorKind::checkpoint, "checkpoint file",
                                                "the checkpoint is damaged"};

/// Throws: Error{checkpoint} naming the manifest: missing, damaged; FileError if it cannot be read.
[[nodiscard]] format::Manifest read_manifest(const std::string& checkpoint);

/// Reads the whole file and compares size and checksum with the manifest's.
///
/// Throws:  Error{checkpoint} naming the file, and the tensor in which the damage lies if it lies
///          in one; FileError if it cannot be read.
/// Threads: any number of callers.
void verify_file(const std::string& checkpoint, const format::FileInfo& file);

/// Runs `open`, which reads the first of `checkpoints`. If that is damaged, its error also names the
/// next older one, which may be read in its place.
///
/// checkpoints: of store::checkpoints_at.
/// Throws:      as `open`.
void with_older_advice(std::span<const std::string> checkpoints, const std::function<void()>& open);

/// Reads boxes from the files that hold them, only the bytes that are asked for. Checks no
/// checksums: verify_file does.
///
/// Throws:  Error{checkpoint} naming the file that cannot be read or does not hold what the
///          manifest says.
/// Threads: one caller.
class Reader {
 public:
  explicit Reader(std::string checkpoint);
  Reader(std::string checkpoint, format::Manifest manifest);

  [[nodiscard]] const format::Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const std::string& path() const { return checkpoint_; }
  /// Null if the checkpoint has no such tensor.
  [[nodiscard]] const format::TensorInfo* find(const std::string& tensor) const;

  /// Opens the files with tensors whose names start with `tensor_prefix`; they stay readable if a
  /// job removes the checkpoint meanwhile.
  void open_files_of(std::string_view tensor_prefix);

  /// Fills `to` with the box's values, row-major. The box must lie within the tensor, and `to` have
  /// its bytes.
  void read(const std::string& tensor, const format::Box& box, std::span<std::byte> to);

  [[nodiscard]] std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Place {
    std::size_t file;
    const format::PieceInfo* piece;
  };
  // A file of the checkpoint once it is in use.
  struct OpenFile {
    base::InputFile input;
    std::map<std::string, std::int64_t> offsets;  // of each tensor's bytes
  };

  OpenFile& open_file(std::size_t index);

  std::string checkpoint_;
  format::Manifest manifest_;
  std::map<std::string, std::vector<Place>> places_;  // by tensor
  std::map<std::size_t, OpenFile> files_;             // by index in the manifest
  std::int64_t bytes_read_ = 0;
};

}  // namespace dtrain::checkpoint::store
