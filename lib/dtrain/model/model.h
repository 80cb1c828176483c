// The model interface: a model is a list of blocks, each ordinary differentiable code.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/values/values.h"
#include "dtrain/model/block_range.h"
#include "dtrain/model/tensor_axis.h"
#include "dtrain/param/parameter_spec.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::model {

/// Returns a parameter's values for one use in a block (param::use_parameter routes the gradient).
using ParameterReader = std::function<at::Tensor(param::ParameterId)>;

/// Receives intermediate values, for the verifier.
using Tap = std::function<void(std::string_view name, const at::Tensor& value)>;

/// The inputs of a block other than its activations.
struct BlockContext {
  /// Number of samples consumed before row 0, () int64 on the device; row b is sample
  /// first_sample + b.
  at::Tensor first_sample = {};
  bool training = false;                     ///< enables dropout
  std::uint64_t seed = 0;                    ///< the run's seed; keys the dropout
  at::Tensor targets;                        ///< (B, T) int64; read by the last block only
  at::ScalarType buffer_dtype = at::kFloat;  ///< dtype of constant tables, e.g. of RoPE
  const ParameterReader& use;
  TensorAxis& tensor_axis;
  const Tap& tap;  ///< may be empty; call it through report()

  void report(std::string_view name, const at::Tensor& value) const {
    if (tap) tap(name, value);
  }
};

/// The shape of the microbatch for which memory is predicted.
struct BatchShape {
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  at::ScalarType dtype = at::kFloat;  ///< dtype of the parameters that blocks read
  bool training = true;

  [[nodiscard]] std::int64_t rows() const { return sequences * length; }
};

/// Returns the bytes of a value.
[[nodiscard]] inline std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// Returns the bytes of a value that is at least float32: a statistic, a loss or a logit.
[[nodiscard]] inline std::int64_t wide_size(at::ScalarType dtype) {
  return std::max<std::int64_t>(4, size_of(dtype));
}

/// Tensor memory of one block for one microbatch, without its parameters and input.
///
/// Units: bytes.
struct BlockMemory {
  std::int64_t output = 0;
  std::int64_t saved = 0;    ///< saved from forward to backward, without the output
  std::int64_t forward = 0;  ///< at the peak of a forward pass with a graph
  std::int64_t forward_without_graph = 0;
  /// At the peak of the backward pass, including the live part of `saved`.
  std::int64_t backward = 0;
};

/// A block's hand-written backward pass, without autograd. Both members run with grad mode off. If
/// the block is recomputed, forward runs again.
class NativeBackward {
 public:
  using GradientOf = std::function<param::GradientTarget(param::ParameterId)>;

  virtual ~NativeBackward() = default;

  /// As Block::forward; also stores the tensors that backward needs, besides x, in `saved`.
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x, const BlockContext& context,
                                           std::vector<at::Tensor>& saved) = 0;

  /// Accumulates the gradient of each used parameter into gradient_of(id), once per parameter, and
  /// returns the gradient of x (undefined for token ids). x, context: as passed to forward.
  ///
  /// Shapes: gradient as forward's output.
  [[nodiscard]] virtual at::Tensor backward(const at::Tensor& x, const at::Tensor& gradient,
                                            std::span<const at::Tensor> saved,
                                            const BlockContext& context,
                                            const GradientOf& gradient_of) = 0;
};

/// One layer of a model. Computes in the dtype of its parameters: float64, float32, bfloat16 or
/// float16. forward is a pure function of input, parameters and context, so it can be recomputed.
class Block {
 public:
  virtual ~Block() = default;

  /// Computes the block's output.
  ///
  /// Shapes: x (B, T, D), or token ids (B, T) int64 for the first block; returns (B, T, D), or for
  ///         the last block per-token losses (B, T) in nats, float32 or float64.
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x, const BlockContext& context) = 0;

  /// Returns the hand-written backward pass; null if autograd computes the gradients. In training,
  /// NativeBackward::forward then replaces Block::forward.
  [[nodiscard]] virtual NativeBackward* native_backward() { return nullptr; }

  /// All parameters that forward may use; blocks may share parameters.
  [[nodiscard]] virtual std::span<const param::ParameterId> parameters() const = 0;

  /// Predicts the memory of forward and backward, without running them.
  [[nodiscard]] virtual BlockMemory memory(const BatchShape& shape) const = 0;
};

/// The cost of a block of the whole, unsplit model at its full sequence length; for MFU.
struct BlockCost {
  double forward_flops_per_token = 0;     ///< multiply-add = 2; attention counted causally (half)
  double recomputed_flops_per_token = 0;  ///< recomputation in the block's own backward pass
  /// Values per token that are all-reduced over the tensor axis, forward and backward; 0 if none.
  double reduced_values_per_token = 0;
};

/// A constant tensor of exported model files, e.g. the RoPE frequencies.
struct ExportedBuffer {
  std::string name;
  at::Tensor value;
};

/// Selects how a model's blocks compute.
struct ComputeOptions {
  config::Kernels kernels = config::Kernels::plain;  ///< fused or plain
  config::AttentionSetting attention = {};
  bool recomputes_gates = false;  ///< fused kernels only
  std::int64_t threads = 1;       ///< per rank; used only to predict memory
};

/// A model before memory is allocated: the whole model, or the blocks of one pipeline stage.
struct Model {
  param::ParameterSpecs parameters;  ///< of the whole model, including parameters not on this rank
  base::IndexedVector<BlockId, std::unique_ptr<Block>> blocks;
  base::IndexedVector<BlockId, BlockCost> costs;
  std::vector<ExportedBuffer> buffers;
  /// Tensors that other programs' files contain although no result depends on them; ignored.
  std::vector<std::string> unused_tensors = {};
  /// Tensors in files of other programs that must equal a parameter, and are then ignored.
  std::vector<param::ParameterAlias> aliases = {};
  std::int64_t table_values = 0;  ///< elements of constant tables that blocks share
  bool widens_tables = false;     ///< tables of 16-bit dtypes are stored in float32
  std::string kernels = {};       ///< describes the kernels of the layers, for the start table
  std::int64_t width = 0;         ///< D of the activations (B, T, D)
  bool takes_tokens = true;       ///< the first block reads token ids, otherwise (B, T, D)
  bool gives_losses = true;       ///< the last block returns losses, otherwise (B, T, D)

  /// The blocks between embedding and head.
  [[nodiscard]] BlockRange layers() const {
    return {BlockId(takes_tokens ? 1 : 0), blocks.end_id() - (gives_losses ? 1 : 0)};
  }
  /// Number of parameter elements that this rank holds.
  [[nodiscard]] std::int64_t num_elements() const {
    std::int64_t total = 0;
    for (const param::ParameterSpec& spec : parameters) total += spec.num_elements();
    return total;
  }
  /// Model FLOPs per token of forward and backward (3 times forward).
  [[nodiscard]] double training_flops_per_token() const {
    double forward = 0;
    for (const BlockCost& cost : costs) forward += cost.forward_flops_per_token;
    return 3 * forward;
  }
};

/// Extracts the blocks in `ranges` (ascending, disjoint) as the model of a pipeline stage.
/// Parameters keep their ids; parameters that none of these blocks uses are marked as not held by
/// this rank. Buffers and tables are kept.
[[nodiscard]] std::unique_ptr<Model> extract_blocks(std::unique_ptr<Model> whole,
                                                    std::span<const BlockRange> ranges);

}  // namespace dtrain::model
