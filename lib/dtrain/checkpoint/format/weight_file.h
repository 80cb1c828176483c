// The weights of a model as its users save them: safetensors or torch.save, whole or in shards.
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

/// Names of parameters begin so in checkpoints.
inline constexpr const char* kWeightPrefix = "model.";

/// A file of weights, mapped for reading: a safetensors file, a file of torch.save, or the index of
/// shards of either. Tensors have the names of the model itself: what torch.compile, DataParallel
/// and their like add to them is left out, and so is what all names begin with.
///
/// Throws:  open(): Error{checkpoint} naming the file, what it is instead and what to give or save:
///          as SafetensorsFile and read_torch_file; a missing shard; two tensors of one name.
/// Threads: any number of readers.
class WeightFile {
 public:
  [[nodiscard]] static WeightFile open(const std::string& path);

  [[nodiscard]] std::span<const TensorView> tensors() const noexcept { return tensors_; }
  /// Null if there is no tensor of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;
  /// The metadata of a safetensors file; empty for other formats.
  [[nodiscard]] const Metadata& metadata() const noexcept { return metadata_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Parts of names and tensors that were dropped, each as a phrase for a message.
  [[nodiscard]] std::span<const std::string> notes() const noexcept { return notes_; }
  /// Calls `read`, which uses the tensors.
  ///
  /// Throws: as verify_checksums where `read` throws Error{checkpoint} and the file is damaged;
  ///         else what `read` throws, with the notes.
  void explain_errors(const std::function<void()>& read) const;

  /// True if the tensors have the names and shapes of checkpoints (model.NAME, a row per neuron)
  /// instead of the reference's.
  [[nodiscard]] bool has_storage_shapes() const noexcept;

  /// The size of all shards together.
  [[nodiscard]] std::int64_t num_bytes() const noexcept;
  /// Reads all of the files. Returns false if one has no checksum.
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
  void refuse_equal_names(std::span<const std::string> original) const;

  std::string path_;
  std::vector<SafetensorsFile> safetensors_;
  std::vector<base::MappedFile> torch_files_;
  std::vector<TensorView> tensors_;
  Metadata metadata_;
  std::vector<std::string> notes_;
};

}  // namespace dtrain::checkpoint::format
