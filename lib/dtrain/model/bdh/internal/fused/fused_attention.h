// The first half of a fused BDH layer (level): encoder and causal linear attention.
#pragma once

#include <cstdint>

#include "dtrain/model/bdh/internal/fused/fused_work.h"

namespace dtrain::model::bdh {

/// x (B, T, D) -> S x, where S = strictly_lower(q qᵀ). Without softmax, a sequence can be split
/// into spans: a position attends to its own span through scores, and to all earlier spans through
/// a state (N, D), the sum of q(s) x(s)ᵀ over their positions s. With one span there is no state
/// and the cost is quadratic in T; with several spans it is linear.
///
/// rotations: rope_rotations (T, N/2, 2) of element type W. Threads: as FusedWork.
template <typename S>
class FusedAttention {
 public:
  using W = typename FusedWork<S>::W;

  /// work: must outlive this.
  FusedAttention(FusedWork<S>& work, const at::Tensor& rotations)
      : work_(work), rotations_(rotations) {}

  /// Writes xs (nh, B, T, N) and scores (nh, B, T, span); returns S x (nh, B, T, D) in type W.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& encoder,
                                   const at::Tensor& xs, const at::Tensor& scores);

  /// Adds the encoder's gradient to `gradient`, overwrites scores, and returns the gradient of x.
  /// d_xs: gradient of the other uses of xs.
  ///
  /// Shapes: d_attended (nh, B, T, D) in type S; returns (B, T, D) in type W.
  [[nodiscard]] at::Tensor backward(const at::Tensor& d_attended, const at::Tensor& x,
                                    const at::Tensor& encoder, const at::Tensor& xs,
                                    const at::Tensor& d_xs, const at::Tensor& scores,
                                    const GradientSum& gradient);

 private:
  using Worker = typename FusedWork<S>::Worker;
  using Input = typename FusedWork<S>::Input;
  template <typename T>
  using Matrix = kernels::Matrix<T>;

  // The score matrix of one span in a tensor (..., T, span), of sequence `index`.
  template <typename T>
  [[nodiscard]] Matrix<T> square(const at::Tensor& scores, std::int64_t index,
                                 const Span& span) const;
  // A worker's state (chunk, D).
  [[nodiscard]] Matrix<W> state(Worker& worker, const NeuronRange& range) const;
  // The state, rounded to S for use as an operand.
  [[nodiscard]] Input rounded(Worker& worker, const Matrix<W>& state) const;
  [[nodiscard]] const W* rotations_of(std::int64_t position, const NeuronRange& range) const;

  // Computes q for a span in the worker's first tile.
  [[nodiscard]] Matrix<S> rotated(Worker& worker, const Matrix<S>& xs, const Span& span,
                                  const NeuronRange& range) const;
  [[nodiscard]] bool is_last(const Span& span) const {
    return span.begin + span.count == work_.shape().length;
  }
  // Adds a span's attention to the state before it, then adds the span to the state.
  void attend_to_state(Worker& worker, const Matrix<S>& q, const Input& x, const Span& span,
                       const NeuronRange& range, const Matrix<W>& attended);
  void sum_scores(const at::Tensor& parts, const at::Tensor& scores);
  [[nodiscard]] at::Tensor apply_scores(const at::Tensor& x, const at::Tensor& scores);

  [[nodiscard]] Matrix<W> square_accumulator(Worker& worker, const Matrix<S>& square) const;
  [[nodiscard]] at::Tensor scores_backward(const at::Tensor& d_attended, const at::Tensor& x,
                                           const at::Tensor& scores);
  void state_read_backward(Worker& worker, const Matrix<S>& q, const Input& x,
                           const Input& d_attended, const Span& span, const NeuronRange& range,
                           const Matrix<W>& d_q);
  void state_write_backward(Worker& worker, const Matrix<S>& q, const Input& x,
                            const Input& d_attended, const Span& span, const NeuronRange& range,
                            const Matrix<W>& d_q, const Matrix<W>& d_x);

  FusedWork<S>& work_;
  at::Tensor rotations_;
};

extern template class FusedAttention<float>;
extern template class FusedAttention<double>;
extern template class FusedAttention<c10::BFloat16>;

}  // namespace dtrain::model::bdh
