// Reads checkpoints: manifests, and boxes of tensors; verifies the checksums of files.
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

/// How messages describe a file of a checkpoint.
inline constexpr base::FileRole kCheckpointFile{base::ErrorKind::checkpoint, "checkpoint file",
                                                "the checkpoint is damaged"};

/// Reads and checks a checkpoint's manifest.
///
/// Throws: Error{checkpoint} naming the manifest if it is missing or damaged; FileError if it
///         cannot be read.
[[nodiscard]] format::Manifest read_manifest(const std::string& checkpoint);

/// Reads a whole file and compares its size and checksum with the manifest's.
///
/// Throws:  Error{checkpoint} naming the file, and the damaged tensor if the damage is in one;
///          FileError if the file cannot be read.
/// Threads: any number of callers.
void verify_file(const std::string& checkpoint, const format::FileInfo& file);

/// Runs `open`, which reads the first of `checkpoints`. If that checkpoint is damaged, the error
/// also names the next older one.
///
/// checkpoints: from store::checkpoints_at.
/// Throws:      as `open`.
void with_fallback_hint(std::span<const std::string> checkpoints,
                        const std::function<void()>& open);

/// Reads boxes of tensors across the files of a checkpoint, and only the requested bytes. Does not
/// verify checksums; verify_file does.
///
/// Throws:  Error{checkpoint} naming the file that cannot be read or contradicts the manifest.
/// Threads: one caller.
class Reader {
 public:
  explicit Reader(std::string checkpoint);
  Reader(std::string checkpoint, format::Manifest manifest);

  [[nodiscard]] const format::Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const std::string& path() const { return checkpoint_; }
  /// Returns null if the checkpoint has no such tensor.
  [[nodiscard]] const format::TensorInfo* find(const std::string& tensor) const;

  /// Opens the files that hold tensors whose names start with `tensor_prefix`, so that they stay
  /// readable even if a job removes the checkpoint.
  void open_files_of(std::string_view tensor_prefix);

  /// Fills `to` with the box's values, row-major. The box must lie within the tensor, and the sizes
  /// of `to` and the box in bytes must be equal.
  void read(const std::string& tensor, const format::Box& box, std::span<std::byte> to);

  [[nodiscard]] std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct PieceLocation {
    std::size_t file;
    const format::PieceInfo* piece;
  };
  // A file that has been opened.
  struct OpenFile {
    base::InputFile input;
    std::map<std::string, std::int64_t> offsets;  // byte offset of each tensor
  };

  OpenFile& open_file(std::size_t index);

  std::string checkpoint_;
  format::Manifest manifest_;
  std::map<std::string, std::vector<PieceLocation>> locations_;  // by tensor
  std::map<std::size_t, OpenFile> files_;                        // by index in the manifest
  std::int64_t bytes_read_ = 0;
};

}  // namespace dtrain::checkpoint::store
