// Reads and writes model files: all parameters under the reference's names and shapes, and the
// settings that rebuild the model (docs/formats/model.md).
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

/// Writes a model file a parameter at a time, each in its exported shape, with `buffers`,
/// {"format": "pt"} and `metadata`. The file appears whole or not at all.
///
/// Throws:  Error{checkpoint} naming the file if it cannot be written.
/// Threads: one caller.
class ModelFileWriter {
 public:
  /// dtype: of the parameters. `specs` and `buffers` must outlive this.
  ModelFileWriter(const std::string& path, const param::ParameterSpecs& specs, at::ScalarType dtype,
                  std::span<const NamedTensor> buffers, const format::Metadata& metadata);

  /// The parameters in the order of their ids; values: in storage shape.
  void write(param::ParameterId id, const at::Tensor& values);
  /// Returns the bytes that write() takes at most for values on the CPU: the copy of a parameter
  /// whose exported dims are not in the order of its storage.
  [[nodiscard]] static std::int64_t write_bytes(const param::ParameterSpecs& specs,
                                                at::ScalarType dtype);
  /// After the last parameter.
  void commit();

 private:
  void write_due_buffers();

  const param::ParameterSpecs& specs_;
  std::span<const NamedTensor> buffers_;
  TensorFileWriter file_;
  std::size_t next_ = 0;  // in the file's order
};

/// Writes a whole model from memory, in the arena's dtype.
///
/// Throws: as ModelFileWriter.
void write_model_file(const std::string& path, const param::ParameterSpecs& specs,
                      const param::Arena& arena, std::span<const NamedTensor> buffers,
                      const format::Metadata& metadata);

/// The tensors that a model's files may hold beside its parameters.
struct Constants {
  std::vector<NamedTensor> buffers;  ///< the model computes with these values
  std::vector<std::string> unused;   ///< names; the model computes nothing with them
};

/// What read_model_file returns.
struct ReadModel {
  param::Arena weights;
  /// The parts of names and the tensors that it left out, in a line for the user; empty: none.
  std::string note;
};

/// The file's parameters in memory of their own, of the options' dtype and on their device. A
/// buffer may be missing from the file. One that is there, or stands in another module of the file
/// (`layers.0.freqs` for `attn.freqs`), must hold the values of `buffers` up to rounding, because
/// the model computes with its own. Nothing is allocated before every shape is known to fit.
///
/// Throws: Error{checkpoint} naming file and tensors if they are missing, unknown, not of floating
///         point or of another shape, or a buffer has other values; naming the file if its checksum
///         shows damage.
[[nodiscard]] ReadModel read_model_file(const format::WeightFile& file,
                                        const param::ParameterSpecs& specs,
                                        const Constants& constants,
                                        const at::TensorOptions& options);

/// A whole model in memory as pieces, which share the arena's memory.
[[nodiscard]] State state_of(const param::ParameterSpecs& specs, const param::Arena& arena);

/// Throws: Error{checkpoint} naming `path` and the first piece with a value that is NaN or infinite.
void check_finite(const State& pieces, std::string_view path);

/// Refuses values of another source that are not finite.
class FiniteSource final : public Source {
 public:
  /// path: of the source, for messages. `source` must outlive this.
  FiniteSource(Source& source, std::string path) : source_(source), path_(std::move(path)) {}

  [[nodiscard]] bool has(const std::string& name) const override { return source_.has(name); }
  void read(const Piece& piece) override;

 private:
  Source& source_;
  std::string path_;
};

/// A whole model in memory as the source of weights.
class ArenaSource final : public Source {
 public:
  /// `specs` must outlive this.
  ArenaSource(const param::ParameterSpecs& specs, param::Arena arena)
      : specs_(specs), arena_(std::move(arena)) {}

  [[nodiscard]] bool has(const std::string& name) const override;
  void read(const Piece& piece) override;

 private:
  const param::ParameterSpecs& specs_;
  param::Arena arena_;
};

}  // namespace dtrain::checkpoint
