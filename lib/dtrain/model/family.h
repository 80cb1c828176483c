// A model family: all of one architecture that needs tensors. Its settings are config/family.h's.
// The families of this build make models by name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/model/model.h"
#include "dtrain/param/arena.h"

namespace dtrain::model {

/// The tensors of a file that holds a model's weights, by exported name.
struct TensorShapes {
  std::string path;         ///< of the file
  std::string prefix = {};  ///< of the names in the file
  std::map<std::string, std::vector<std::int64_t>, std::less<>> shapes = {};
  bool is_storage = false;  ///< shapes are as in storage (ParameterSpec::shape), else as exported

  [[nodiscard]] bool has(std::string_view name) const { return shapes.contains(name); }
  /// One size of a tensor that must have `rank` dims.
  ///
  /// Throws: Error{checkpoint} naming the tensor, if it is missing or has another number of dims.
  [[nodiscard]] std::int64_t size(std::string_view name, std::size_t rank, std::size_t dim) const;
  /// Throws: Error{checkpoint}: the file does not say how many `what` its model has; give `advice`.
  [[noreturn]] void refuse_silent(std::string_view what, std::string_view advice) const;
};

/// The user's flags that describe a file's model where the file does not; 0: not given.
struct UserHints {
  std::int64_t levels = 0;
  std::string_view levels_flag = "--levels";
  config::FamilySettings own = {};  ///< holds the families' flags of import
};

/// Throws: Error{usage} if a flag contradicts the file: told is neither 0 nor found.
void check_told(std::string_view path, std::string_view flag, std::int64_t told,
                std::int64_t found);

/// A value that blocks report (BlockContext::report), for fixtures to be checked.
struct ReportedValue {
  std::string name;
  std::vector<std::int64_t> shape;
  bool is_required = true;  ///< every fixture has it
};

/// One sequence, fed token by token.
///
/// Threads: one caller.
class Generator {
 public:
  virtual ~Generator() = default;

  /// Feeds the token of the next position.
  ///
  /// Shapes: returns logits (V) in the weights' dtype, float32 for those of 16 bits; replaced by
  ///         the next call.
  /// Throws: Error{usage} beyond Family::max_positions; Error{internal} for a token outside the
  ///         vocabulary.
  [[nodiscard]] virtual const at::Tensor& step(std::int64_t token) = 0;
};

class Family {
 public:
  virtual ~Family() = default;

  /// As make_model.
  [[nodiscard]] virtual std::unique_ptr<Model> make(const config::ModelConfig& config,
                                                    std::int64_t seq_len, const TensorPlace& place,
                                                    const Computation& computation) const = 0;
  /// As tensor_subgroups.
  [[nodiscard]] virtual std::vector<mesh::Subgroup> tensor_subgroups(
      const config::ModelConfig& /*config*/, std::int64_t /*tp*/) const {
    return {};
  }

  /// True if a file with these tensors holds a model of this family.
  [[nodiscard]] virtual bool recognises(const TensorShapes& tensors) const = 0;
  /// Reads the settings off the tensors, and where they are silent takes the user's flags; leaves
  /// `levels` 0 where neither gives it.
  ///
  /// Throws: Error{checkpoint} naming a tensor that is missing or has no such shape, or the flag
  ///         that says what the file does not; Error{usage} if a flag cannot be.
  [[nodiscard]] virtual config::ModelConfig read_sizes(const TensorShapes& tensors,
                                                       const UserHints& told) const = 0;
  /// Throws: Error{usage} if a user's flag for the family's own settings contradicts the file.
  virtual void check_own(const config::ModelConfig& /*found*/, const UserHints& /*told*/,
                         std::string_view /*path*/) const {}

  /// The values that blocks report for `rows` sequences of `length` tokens, beside the logits.
  [[nodiscard]] virtual std::vector<ReportedValue> reported_values(
      const config::ModelConfig& config, std::int64_t rows, std::int64_t length) const = 0;

  /// Positions that can be generated.
  [[nodiscard]] virtual std::int64_t max_positions() const = 0;
  /// What a generator holds beside its weights, of this dtype; 0: next to nothing.
  ///
  /// Units: bytes.
  [[nodiscard]] virtual std::int64_t generator_bytes(const config::ModelConfig& /*config*/,
                                                     at::ScalarType /*dtype*/) const {
    return 0;
  }
  /// weights: the parameters as make() lists them; shared, not copied, and not to be changed while
  /// the sequence runs.
  [[nodiscard]] virtual std::unique_ptr<Generator> make_generator(
      const config::ModelConfig& config, const param::Arena& weights) const = 0;
};

/// The family that `config.name` names.
[[nodiscard]] const Family& family_of(const config::ModelConfig& config);

/// The model that `config.name` names, for sequences of up to seq_len tokens,
/// as much of it as a rank at `place` holds.
///
/// computation: a family without fused kernels has but the plain.
/// Throws: Error{usage} for a tensor axis that the model cannot be cut for.
[[nodiscard]] std::unique_ptr<Model> make_model(const config::ModelConfig& config,
                                                std::int64_t seq_len, const TensorPlace& place = {},
                                                const Computation& computation = {});

/// Neighbours on a tensor axis of `tp` ranks that the model's blocks let talk to each other alone
/// (TensorAxis::reduce_within), by subgroup.
///
/// Throws: as make_model.
[[nodiscard]] std::vector<mesh::Subgroup> tensor_subgroups(const config::ModelConfig& config,
                                                           std::int64_t tp);

/// The settings of the model whose weights a file holds, as its family reads them off the tensors.
///
/// Throws: Error{checkpoint} where no family recognises the tensors, or does not find the number of
///         levels; else as Family::read_sizes.
[[nodiscard]] config::ModelConfig recognise(const TensorShapes& tensors, const UserHints& told);

}  // namespace dtrain::model
