// Reads model weights from safetensors or torch.save files, single or sharded.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/mapped_file.h"
#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {

/// The prefix of parameter names in checkpoints.
inline constexpr const char* kWeightPrefix = "model.";

/// Metadata key of a checkpoint's data files: the shapes of the global tensors as JSON.
inline constexpr const char* kShapesKey = "dtrain.shapes";

/// A memory-mapped file of weights: safetensors, torch.save, or a shard index of either. Name
/// prefixes of wrappers such as torch.compile and DataParallel are dropped, and so is a prefix
/// common to all tensor names, except that of a checkpoint's file and a module of Hugging Face's
/// files (config::HuggingFaceModule), which is added to the names of a file that holds it alone.
///
/// Throws:  open(): Error{checkpoint} naming the file, its content and what to give or save
///          instead: as SafetensorsFile and read_torch_file; also for a missing shard or a
///          duplicate name.
/// Threads: any number of readers.
class WeightFile {
 public:
  [[nodiscard]] static WeightFile open(const std::string& path);

  [[nodiscard]] std::span<const TensorView> tensors() const noexcept { return tensors_; }
  /// Null if there is no tensor of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;
  /// The metadata of a safetensors file, or of an index's first shard that has any; empty for other
  /// formats.
  [[nodiscard]] const Metadata& metadata() const noexcept { return metadata_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Phrases that describe dropped tensors, and name prefixes dropped and added, for a message.
  [[nodiscard]] std::span<const std::string> notes() const noexcept { return notes_; }
  /// Calls `read`, which uses the tensors, and improves its errors.
  ///
  /// Throws: as verify_checksums if `read` throws Error{checkpoint} and the file is damaged;
  ///         otherwise the exception of `read`, with the notes.
  void explain_errors(const std::function<void()>& read) const;

  /// Returns whether this is a file of a checkpoint: its tensors have the names and shapes of
  /// checkpoints (model.NAME, one row per neuron) instead of those of the reference implementation.
  [[nodiscard]] bool has_storage_shapes() const noexcept;

  /// The total size of all shards.
  [[nodiscard]] std::int64_t num_bytes() const noexcept;
  /// Reads all files and verifies their checksums. Returns false if a file has none.
  ///
  /// Throws: as format::verify_checksum and verify_torch_file.
  [[nodiscard]] bool verify_checksums() const;

 private:
  void add_file(const std::string& path);
  void add_torch_file(base::MappedFile file);
  void add_shards(const base::MappedFile& index);
  void leave_out_average_count();
  void leave_out_wrappers();
  void leave_out_common_prefix();
  void add_module_prefix();
  void refuse_equal_names(std::span<const std::string> original) const;

  std::string path_;
  std::vector<SafetensorsFile> safetensors_;
  std::vector<base::MappedFile> torch_files_;
  std::vector<TensorView> tensors_;
  Metadata metadata_;
  std::vector<std::string> notes_;
};

}  // namespace dtrain::checkpoint::format
