// A model family's settings and their checks. Its blocks are declared in model/family.h.
#pragma once

#include <any>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/config/config.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/resolve/advice.h"
#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// A device's speed, the basis of --attention auto. Only the ratios matter.
struct DeviceRates {
  double matmul_flops = 0;       ///< FLOP/s of matmuls in the compute dtype
  double wide_matmul_flops = 0;  ///< FLOP/s of the matmuls that float16 runs keep in float32
  double memory_bandwidth = 0;   ///< bytes per second
};

/// An H100's rates for the machine's dtype. The rates are constants for every device, so that all
/// ranks make the same choice, even if a run resumes on another GPU. Ratios of other GPUs are
/// within a factor of two, which changes the time of the chosen attention by a few percent.
[[nodiscard]] DeviceRates device_rates(const MachineConfig& machine);

/// The input of --attention auto.
struct AttentionWorkload {
  std::int64_t seq_len = 0;
  /// The device's rates; null for fused kernels on a CPU, whose state stays in the cache.
  const DeviceRates* rates = nullptr;
  /// Bytes per value of the compute dtype.
  std::int64_t value_bytes = 4;
};

/// A file of an exported folder.
struct HuggingFaceFile {
  std::string_view name;
  std::string_view content;
};

/// The module of transformers that holds all tensors except the output layer's.
struct HuggingFaceModule {
  /// Prefix of the tensor names: "model."; empty if the family has no such module.
  std::string_view prefix = {};
  /// The next components of these names, the embedding's first: "embed_tokens.", "layers.", ...
  std::span<const std::string_view> children = {};

  /// True if a tensor of this name belongs to the module.
  [[nodiscard]] bool holds(std::string_view name) const noexcept;
  /// True if a tensor of this name does, once the prefix is added.
  [[nodiscard]] bool lacks_prefix(std::string_view name) const noexcept;
};

/// A family's models in Hugging Face's format.
struct HuggingFaceFormat {
  /// The values of model_type that model_of understands.
  std::span<const std::string_view> model_types;
  /// Returns the settings that a config.json of one of these types describes.
  ///
  /// origin: the file, for messages.
  /// Throws: Error{checkpoint} naming origin and the key: missing, of another type, with a value for
  ///         which dtrain has no arithmetic, or unknown.
  ModelConfig (*model_of)(const Json& config, const std::string& origin);
  /// Returns the keys of config.json except those on dtype and tokens.
  ///
  /// Throws: Error{usage} naming a setting that none of the types has.
  Json (*config_of)(const ModelConfig& model);
  /// Files of every exported folder besides weights, tokens and the two configurations: the model in
  /// Python, if transformers lacks it.
  std::span<const HuggingFaceFile> files = {};
  /// True if tensors alone do not determine a model: weights need a config.json beside them.
  bool needs_config = true;
  /// A file may lack its prefix; other common prefixes of a file are those of wrappers.
  HuggingFaceModule module = {};
};

/// How --match counts a family's models and chooses their sizes (match.h).
struct Sizing {
  /// Returns the number of parameters.
  std::int64_t (*parameters)(const ModelConfig& model);
  /// Returns the FLOPs per token of a training step, as model::Model::training_flops_per_token.
  ///
  /// config: its sequence length counts; attention resolved (resolve_attention).
  double (*training_flops)(const Config& config);
  /// Returns the divisor of the widths to choose from.
  std::int64_t (*width_step)(const ModelConfig& model);
  /// Key of the size that is tuned last, with the smallest divisor of its values.
  std::string_view tuned_key;
  std::int64_t tuned_step;
  /// Returns the usual value of this size for the model's width.
  std::int64_t (*usual_value)(const ModelConfig& model);
};

/// The part of a model that --kernels fused computes on the CPU.
enum class FusedKernels : std::uint8_t {
  none,
  rows,    ///< operations on rows of activations; LibTorch computes the matrix products
  layers,  ///< whole layers, with bits that do not depend on threads, and --recompute gates
};

struct Family {
  std::string_view name;  ///< the value of --model
  /// Rows of the settings table (rows.h). Those of the group "model" require --model NAME.
  std::span<const Setting> settings;
  std::span<const ForeignFlags> foreign_flags = {};
  /// Returns this family's settings struct for FamilySettings, with default values.
  std::any (*defaults)();
  /// Throws: Error{usage} naming settings that contradict each other.
  void (*check)(const ModelConfig& model);
  const HuggingFaceFormat& hugging_face;
  const Sizing& sizing;
  FusedKernels fused_kernels = FusedKernels::none;
  /// Chooses the chunk (positions) of --attention auto; 0 means full attention. Null if the family
  /// does not support --attention.
  std::int64_t (*attention_chunk)(const ModelConfig& model,
                                  const AttentionWorkload& work) = nullptr;
  /// Replaces sizes of 0 by the sizes that they stand for. Null if the family has no such sizes.
  void (*resolve_sizes)(ModelConfig& model) = nullptr;
  /// The longest sequence that the model is made for; it computes longer ones nevertheless. Null if
  /// every --seq-len is below it.
  std::int64_t (*max_positions)(const ModelConfig& model) = nullptr;
};

#define FAMILY(name)      \
  namespace name {        \
  const Family& family(); \
  }
#include "dtrain/config/families.inc"
#undef FAMILY

/// Every family of this build (families.inc).
[[nodiscard]] std::span<const Family* const> families() noexcept;

/// Their names: the values of --model.
[[nodiscard]] std::span<const Choice> family_names() noexcept;

/// The family named by model.name.
[[nodiscard]] const Family& family_of(const ModelConfig& model);

/// Returns `model` with sizes of 0 replaced by the sizes that they stand for.
[[nodiscard]] ModelConfig with_resolved_sizes(ModelConfig model);

/// True if `config` and `other` have the same value of `setting`. A size of 0 counts as the size
/// that it stands for in the model of `other`.
[[nodiscard]] bool repeats_value(const Setting& setting, const Config& config, const Config& other);

/// True if whole layers are fused kernels.
[[nodiscard]] inline bool has_fused_layers(const Config& config) {
  return config.machine.kernels == Kernels::fused &&
         family_of(config.model).fused_kernels == FusedKernels::layers;
}

}  // namespace dtrain::config
