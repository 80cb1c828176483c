// Reads and writes model files: all parameters under the reference implementation's names and
// shapes, and the model's settings (docs/formats/model.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/param/arena.h"

namespace dtrain::checkpoint {

/// Writes a model file: the parameters, one at a time and each in its exported shape, `buffers`,
/// and `metadata` with {"format": "pt"} added. commit() makes the complete file visible.
///
/// Throws:  Error{checkpoint} naming the file if it cannot be written.
/// Threads: one caller.
class ModelFileWriter {
 public:
  /// dtype: the parameters' dtype. `specs` and `buffers` must outlive this object.
  ModelFileWriter(const std::string& path, const param::ParameterSpecs& specs, at::ScalarType dtype,
                  std::span<const NamedTensor> buffers, const format::Metadata& metadata);

  /// Writes the next parameter; call in order of ids. values: in storage shape.
  void write(param::ParameterId id, const at::Tensor& values);
  /// Returns the peak bytes that write() allocates for values on the CPU: the size of the largest
  /// parameter whose exported dims are in another order than in storage, and that is thus copied.
  [[nodiscard]] static std::int64_t write_bytes(const param::ParameterSpecs& specs,
                                                at::ScalarType dtype);
  /// Call after the last parameter.
  void commit();

 private:
  void write_due_buffers();

  const param::ParameterSpecs& specs_;
  std::span<const NamedTensor> buffers_;
  TensorFileWriter file_;
  std::size_t next_ = 0;  // index in the file's order
};

/// Writes a complete model from memory, in the arena's dtype.
///
/// Throws: as ModelFileWriter.
void write_model_file(const std::string& path, const param::ParameterSpecs& specs,
                      const param::Arena& arena, std::span<const NamedTensor> buffers,
                      const format::Metadata& metadata);

/// Tensors besides the parameters that a model's files may contain.
struct Constants {
  std::vector<NamedTensor> buffers;                 ///< constants that the model uses
  std::vector<std::string> unused;                  ///< names of tensors that the model ignores
  std::vector<param::ParameterAlias> aliases = {};  ///< must equal their parameters
};

/// Compares a file's names, shapes and dtypes with a model's parameters, and verifies the file's
/// checksum if it has one. Buffers may be missing from the file. A buffer that is present, even in
/// another module (`layers.0.freqs` for `attn.freqs`), must equal the one in `constants` up to
/// rounding, because the model uses the latter. Returns a message to the user on dropped tensors
/// and name prefixes; it may be empty.
///
/// Throws: Error{checkpoint} naming the file, and the tensors that are missing, unknown, not
///         floating point or of another shape, or the buffer or alias whose values differ; also if
///         a checksum does not match.
[[nodiscard]] std::string check_model_file(const format::WeightFile& file,
                                           const param::ParameterSpecs& specs,
                                           const Constants& constants);

/// The result of read_model_file.
struct LoadedModel {
  param::Arena weights;
  /// A message to the user on dropped tensors and name prefixes; may be empty.
  std::string note;
};

/// Reads a file's parameters into new memory of the options' dtype and device, after
/// check_model_file.
///
/// Throws: as check_model_file.
[[nodiscard]] LoadedModel read_model_file(const format::WeightFile& file,
                                          const param::ParameterSpecs& specs,
                                          const Constants& constants,
                                          const at::TensorOptions& options);

/// Returns the pieces of a whole model in memory; they share the arena's memory.
[[nodiscard]] State state_of(const param::ParameterSpecs& specs, const param::Arena& arena);

/// Rejects non-finite values.
///
/// Throws: Error{checkpoint} naming `path` and the first piece with a NaN or infinity.
void check_finite(const State& pieces, std::string_view path);

/// Reads from another source and rejects non-finite values.
class FiniteSource final : public Source {
 public:
  /// path: the source's path, for messages. `source` must outlive this object.
  FiniteSource(Source& source, std::string path) : source_(source), path_(std::move(path)) {}

  [[nodiscard]] bool has(const std::string& name) const override { return source_.has(name); }
  void read(const Piece& piece) override;

 private:
  Source& source_;
  std::string path_;
};

/// Reads parts of a model file's parameters directly from the mapped file, and allocates memory for
/// at most one parameter. Converts floating-point values if the dtypes differ.
///
/// Threads: one caller.
class ModelFileSource final : public Source {
 public:
  /// file: check_model_file has accepted it. specs: of the whole model. Both must outlive this
  /// object.
  ModelFileSource(const format::WeightFile& file, const param::ParameterSpecs& specs)
      : file_(file), specs_(specs) {}

  [[nodiscard]] bool has(const std::string& name) const override;
  void read(const Piece& piece) override;

 private:
  const format::WeightFile& file_;
  const param::ParameterSpecs& specs_;
};

/// Reads weights from a complete model in memory.
class ArenaSource final : public Source {
 public:
  /// `specs` must outlive this object.
  ArenaSource(const param::ParameterSpecs& specs, param::Arena arena)
      : specs_(specs), arena_(std::move(arena)) {}

  [[nodiscard]] bool has(const std::string& name) const override;
  void read(const Piece& piece) override;

 private:
  const param::ParameterSpecs& specs_;
  param::Arena arena_;
};

}  // namespace dtrain::checkpoint
