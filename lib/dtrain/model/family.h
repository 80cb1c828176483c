// The interface of a model family, that is, the LibTorch part of an architecture (its settings are
// in config/family.h), and the functions that create models by family name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/model/model.h"
#include "dtrain/param/arena.h"

namespace dtrain::model {

/// The tensor shapes of a weight file, by exported name.
struct TensorShapes {
  std::string path;
  std::string prefix = {};  ///< prefix of all tensor names in the file
  std::map<std::string, std::vector<std::int64_t>, std::less<>> shapes = {};
  bool is_storage = false;  ///< shapes are storage shapes (ParameterSpec::shape), not exported ones

  [[nodiscard]] bool has(std::string_view name) const { return shapes.contains(name); }
  /// Returns the size of dim `dim` of a tensor with `rank` dims.
  ///
  /// Throws: Error{checkpoint} naming the tensor if it is missing or has another number of dims.
  [[nodiscard]] std::int64_t size(std::string_view name, std::size_t rank, std::size_t dim) const;
  /// Throws Error{checkpoint}: the file does not specify the model's number of `what`. advice: what
  /// the user should do.
  [[noreturn]] void fail_unspecified(std::string_view what, std::string_view advice) const;
};

/// Model settings from the user's flags, used if a weight file does not specify them; 0: not given.
struct UserHints {
  std::int64_t layers = 0;
  std::string_view layers_flag = "--layers";
  config::FamilySettings own = {};  ///< the families' own import flags
};

/// Throws Error{usage} if flag_value is neither 0 (not given) nor file_value, the file's setting.
void check_flag_agrees(std::string_view path, std::string_view flag, std::int64_t flag_value,
                       std::int64_t file_value);

/// An intermediate value that blocks report (BlockContext::report), for comparison with fixtures.
struct ReportedValue {
  std::string name;
  std::vector<std::int64_t> shape;
  bool is_required = true;  ///< every fixture must contain it
};

/// Generates one sequence, token by token.
///
/// Threads: one caller.
class Generator {
 public:
  virtual ~Generator() = default;

  /// Feeds a new generator the sequence's first tokens, at least one, and returns the logits of
  /// their successor, which are those of step() up to rounding.
  ///
  /// Shapes: as step().
  /// Throws: as step().
  [[nodiscard]] virtual const at::Tensor& read_prompt(std::span<const std::int64_t> tokens) {
    for (const std::int64_t token : tokens.first(tokens.size() - 1)) (void)step(token);
    return step(tokens.back());
  }

  /// Feeds the token at the next position and returns the logits of its successor.
  ///
  /// Shapes: returns (V) in the weights' dtype, float32 for 16-bit weights; overwritten by the next
  ///         call.
  /// Throws: Error{usage} beyond Family::max_positions; Error{internal} for a token outside the
  ///         vocabulary.
  [[nodiscard]] virtual const at::Tensor& step(std::int64_t token) = 0;
};

/// One model architecture.
class Family {
 public:
  virtual ~Family() = default;

  /// As make_model.
  [[nodiscard]] virtual std::unique_ptr<Model> make(const config::ModelConfig& config,
                                                    std::int64_t seq_len,
                                                    const TensorCoordinate& place,
                                                    const ComputeOptions& computation) const = 0;
  /// As tensor_subgroups.
  [[nodiscard]] virtual std::vector<mesh::Subgroup> tensor_subgroups(
      const config::ModelConfig& /*config*/, std::int64_t /*tp*/) const {
    return {};
  }

  /// True if a file with these tensors holds a model of this family.
  [[nodiscard]] virtual bool recognises(const TensorShapes& tensors) const = 0;
  /// Infers the settings from the tensors' shapes; settings that the shapes do not determine come
  /// from the user's flags. `layers` is 0 if neither determines it.
  ///
  /// Throws: Error{checkpoint} naming a tensor that is missing or has an unexpected shape, or the
  ///         flag that must be given; Error{usage} if a flag's value is impossible.
  [[nodiscard]] virtual config::ModelConfig read_sizes(const TensorShapes& tensors,
                                                       const UserHints& hints) const = 0;
  /// Throws Error{usage} if a flag for the family's own settings contradicts the file.
  virtual void check_own(const config::ModelConfig& /*found*/, const UserHints& /*hints*/,
                         std::string_view /*path*/) const {}

  /// The values, besides the logits, that blocks report for `rows` sequences of `length` tokens.
  [[nodiscard]] virtual std::vector<ReportedValue> reported_values(
      const config::ModelConfig& config, std::int64_t rows, std::int64_t length) const = 0;

  /// The maximum length of a generated sequence, prompt included.
  [[nodiscard]] virtual std::int64_t max_positions(const config::ModelConfig& config) const = 0;
  /// Memory of a generator besides the weights, which have this dtype; 0 if negligible.
  ///
  /// positions: of the sequence, prompt included.
  /// Units: bytes.
  [[nodiscard]] virtual std::int64_t generator_bytes(const config::ModelConfig& /*config*/,
                                                     at::ScalarType /*dtype*/,
                                                     std::int64_t /*positions*/) const {
    return 0;
  }
  /// Memory of the largest temporaries while a generator reads a prompt of this length; 0 if
  /// negligible.
  ///
  /// Units: bytes.
  [[nodiscard]] virtual std::int64_t prompt_bytes(const config::ModelConfig& /*config*/,
                                                  at::ScalarType /*dtype*/,
                                                  std::int64_t /*prompt*/) const {
    return 0;
  }
  /// weights: the parameters in the order of make(); shared, not copied, and must not change during
  /// the sequence.
  [[nodiscard]] virtual std::unique_ptr<Generator> make_generator(
      const config::ModelConfig& config, const param::Arena& weights) const = 0;
};

/// Returns the family named by `config.name`.
[[nodiscard]] const Family& family_of(const config::ModelConfig& config);

/// Creates the model named by `config.name`, for sequences of up to seq_len tokens; on a tensor
/// axis, the slice that a rank at `place` holds.
///
/// computation: ignored by families that only have plain kernels.
/// Throws: Error{usage} if the model cannot be split over the tensor axis.
[[nodiscard]] std::unique_ptr<Model> make_model(const config::ModelConfig& config,
                                                std::int64_t seq_len,
                                                const TensorCoordinate& place = {},
                                                const ComputeOptions& computation = {});

/// Returns the subgroups of a tensor axis of `tp` ranks in which the model's blocks communicate
/// (TensorAxis::reduce_within).
///
/// Throws: as make_model.
[[nodiscard]] std::vector<mesh::Subgroup> tensor_subgroups(const config::ModelConfig& config,
                                                           std::int64_t tp);

/// Returns the name of the family whose model a file with these tensors holds; empty if unknown.
[[nodiscard]] std::string_view recognised_family(const TensorShapes& tensors);

/// Infers the settings of the model in a weight file from its tensors.
///
/// Throws: Error{checkpoint} if no family recognises the tensors, or the number of layers remains
///         unknown; otherwise as Family::read_sizes.
[[nodiscard]] config::ModelConfig recognise(const TensorShapes& tensors, const UserHints& hints);

}  // namespace dtrain::model
