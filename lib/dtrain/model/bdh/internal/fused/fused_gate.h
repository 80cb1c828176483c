// The second half of a fused BDH layer (level): encoder_v, gating with dropout, and decoder.
#pragma once

#include <cstdint>

#include "dtrain/base/philox.h"
#include "dtrain/model/bdh/internal/fused/fused_work.h"

namespace dtrain::model::bdh {

/// The parameters of the dropout mask (dropout.h); probability 0 disables dropout.
struct FusedDropout {
  double probability = 0;
  std::uint64_t seed = 0;
  std::int64_t level = 0;
  std::int64_t first_sample = 0;
  std::int64_t first_neuron = 0;
};

/// y_kv (nh, B, T, D) and xs (nh, B, T, N) -> the decoder's output, summed over this rank's
/// neurons.
/// Weights: (nh*N, D).
///
/// Threads: as FusedWork.
template <typename S>
class FusedGate {
 public:
  using W = typename FusedWork<S>::W;

  /// work: must outlive this.
  FusedGate(FusedWork<S>& work, const FusedDropout& dropout);

  /// Writes ys (nh, B, T, N) unless it is undefined; returns (B, T, D) in type W.
  [[nodiscard]] at::Tensor forward(const at::Tensor& y_kv, const at::Tensor& xs,
                                   const at::Tensor& encoder_v, const at::Tensor& decoder,
                                   const at::Tensor& ys);

  struct Gradients {
    const GradientSum& encoder_v;
    const GradientSum& decoder;
  };
  /// Adds the gradients of both weights to `gradients`, overwrites ys with the gradient of xs
  /// through the gate, and returns the gradient of y_kv.
  ///
  /// Shapes: d_decoded (B, T, D) in type S; returns (nh, B, T, D) in type W.
  [[nodiscard]] at::Tensor backward(const at::Tensor& d_decoded, const at::Tensor& y_kv,
                                    const at::Tensor& xs, const at::Tensor& encoder_v,
                                    const at::Tensor& decoder, const at::Tensor& ys,
                                    const Gradients& gradients);

 private:
  [[nodiscard]] RowMask mask_of(std::int64_t head, std::int64_t sample, std::int64_t position,
                                const NeuronRange& range, std::vector<std::uint32_t>& halves) const;

  FusedWork<S>& work_;
  FusedDropout dropout_;
  base::PhiloxKey key_;
  RowMask mask_;
};

extern template class FusedGate<float>;
extern template class FusedGate<double>;
extern template class FusedGate<c10::BFloat16>;

}  // namespace dtrain::model::bdh
