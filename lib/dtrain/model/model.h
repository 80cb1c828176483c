// A model is a list of blocks; each block is ordinary differentiable code.
#pragma once

#include <ATen/core/Tensor.h>

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

/// Gives a block the values of a parameter for one use (param::use_parameter binds the gradient).
using ParameterReader = std::function<at::Tensor(param::ParameterId)>;

/// Hands an intermediate value to the verifier.
using Tap = std::function<void(std::string_view name, const at::Tensor& value)>;

/// Everything a block may know besides its input.
struct BlockContext {
  /// () int64, on the device: samples consumed before row 0; row b is sample first_sample + b.
  at::Tensor first_sample = {};
  bool training = false;                     ///< dropout applies
  std::uint64_t seed = 0;                    ///< of the run; keys the dropout
  at::Tensor targets;                        ///< (B, T) int64; read by the last block only
  at::ScalarType buffer_dtype = at::kFloat;  ///< of constant tables, e.g. of RoPE
  const ParameterReader& use;
  TensorAxis& tensor_axis;
  const Tap& tap;  ///< may be empty: call through report()

  void report(std::string_view name, const at::Tensor& value) const {
    if (tap) tap(name, value);
  }
};

/// The microbatch that memory is predicted for.
struct BatchShape {
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  at::ScalarType dtype = at::kFloat;  ///< of the parameters that blocks read
  bool training = true;

  [[nodiscard]] std::int64_t rows() const { return sequences * length; }
};

/// Tensor memory that one block takes for one microbatch, without its parameters and its input.
///
/// Units: bytes.
struct BlockMemory {
  std::int64_t output = 0;
  std::int64_t saved = 0;    ///< its graph keeps this from forward to backward, output not counted
  std::int64_t forward = 0;  ///< at the peak of a forward pass with a graph
  std::int64_t forward_without_graph = 0;
  std::int64_t backward =
      0;  ///< at the peak of the backward pass, what is left of `saved` included
};

/// A backward pass of a block's own, without autograd. Both members run without grad mode, and may
/// run again where the block is recomputed.
class NativeBackward {
 public:
  using GradientOf = std::function<param::GradientTarget(param::ParameterId)>;

  virtual ~NativeBackward() = default;

  /// Block::forward, which also puts what backward reads besides x into `saved`.
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x, const BlockContext& context,
                                           std::vector<at::Tensor>& saved) = 0;

  /// Writes or adds the gradient of each parameter it has used where gradient_of says, once a
  /// parameter, and returns that of x (undefined for token ids).
  ///
  /// Shapes: x as it came to forward; gradient as forward's output. context: forward's.
  [[nodiscard]] virtual at::Tensor backward(const at::Tensor& x, const at::Tensor& gradient,
                                            std::span<const at::Tensor> saved,
                                            const BlockContext& context,
                                            const GradientOf& gradient_of) = 0;
};

/// One layer of a stack. It computes in the dtype of the parameters it reads: float64, float32,
/// bfloat16 or float16.
///
/// A pure function of input, parameters and context; safe to run again.
class Block {
 public:
  virtual ~Block() = default;

  /// x: (B, T, D), or token ids (B, T) int64 for the first block.
  /// Returns (B, T, D), or per-token losses in nats (B, T), float32 or float64, for the last.
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x, const BlockContext& context) = 0;

  /// Null: autograd computes the block's gradients. Training runs its forward in place of this
  /// block's.
  [[nodiscard]] virtual NativeBackward* native_backward() { return nullptr; }

  /// Every parameter that forward may use; the same id may appear in many blocks.
  [[nodiscard]] virtual std::span<const param::ParameterId> parameters() const = 0;

  /// Predicts the memory of forward and its backward pass, by arithmetic.
  [[nodiscard]] virtual BlockMemory memory(const BatchShape& shape) const = 0;
};

/// The cost of a block of the whole model, however many ranks compute it; for MFU. T is the
/// sequence length the model was made for.
struct BlockCost {
  double forward_flops_per_token = 0;     ///< multiply-add = 2; attention counted causally (half)
  double recomputed_flops_per_token = 0;  ///< of its own backward pass, on top of its gradients
  /// Values of a token that ranks of a tensor axis sum, forward and backward; 0: none.
  double reduced_values_per_token = 0;
};

/// A constant that belongs to the exported model, e.g. the RoPE frequencies.
struct ExportedBuffer {
  std::string name;
  at::Tensor value;
};

/// How a model's blocks compute, where there is a choice.
struct ComputeOptions {
  config::Kernels kernels = config::Kernels::plain;  ///< fused or plain
  config::AttentionSetting attention = {};
  bool recomputes_gates = false;  ///< of fused kernels
  std::int64_t threads = 1;       ///< of a rank; decides nothing but the prediction of memory
};

/// A model before memory is allocated: the whole, or the part that one stage of a pipeline
/// computes.
struct Model {
  param::ParameterSpecs parameters;  ///< of the whole model, held here or not
  base::IndexedVector<BlockId, std::unique_ptr<Block>> blocks;
  base::IndexedVector<BlockId, BlockCost> costs;
  std::vector<ExportedBuffer> buffers;
  /// Names in files of other programs whose tensors are trained, but change no result.
  std::vector<std::string> unused_tensors = {};
  std::int64_t table_values = 0;  ///< elements of constant tables that blocks share
  bool widens_tables = false;     ///< they lie there in float32 where their dtype is narrower
  std::string kernels = {};       ///< what computes the levels, for the user
  std::int64_t width = 0;         ///< D of the (B, T, D) that passes from block to block
  bool takes_tokens = true;       ///< the first block reads token ids, else (B, T, D)
  bool gives_losses = true;       ///< the last block returns losses, else (B, T, D)

  /// The blocks between the one that reads tokens and the one that gives losses.
  [[nodiscard]] BlockRange levels() const {
    return {BlockId(takes_tokens ? 1 : 0), blocks.end_id() - (gives_losses ? 1 : 0)};
  }
  /// Of all parameters, as far as this rank holds them.
  [[nodiscard]] std::int64_t num_elements() const {
    std::int64_t total = 0;
    for (const param::ParameterSpec& spec : parameters) total += spec.num_elements();
    return total;
  }
  /// Model FLOPs of forward and backward (3 times forward) for one token.
  [[nodiscard]] double training_flops_per_token() const {
    double forward = 0;
    for (const BlockCost& cost : costs) forward += cost.forward_flops_per_token;
    return 3 * forward;
  }
};

/// Makes the blocks of `ranges`, which ascend without overlap, a model of their own, for a stage of
/// a pipeline. Parameters keep their ids; those that no block of the part uses are not held.
/// Buffers and tables stay.
[[nodiscard]] std::unique_ptr<Model> extract_blocks(std::unique_ptr<Model> whole,
                                                    std::span<const BlockRange> ranges);

}  // namespace dtrain::model
