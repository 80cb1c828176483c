// The first half of a fused level: the encoder, and attention over the past.
#pragma once

#include <cstdint>

#include "dtrain/model/bdh/internal/fused_work.h"

namespace dtrain::model::bdh {

/// x (B, T, D) -> S x, where S = strictly_lower(q qᵀ). There is no softmax, so that a sequence may
/// be cut into spans: a position reads those of its span by scores, and all before by a state (N,
/// D), the sum of q(s) x(s)ᵀ over them. With one span there is no state, and the cost grows with
/// the square of T; with several it grows with T.
///
/// turns: rope_rotations (T, N/2, 2) of W. Threads: as FusedWork.
template <typename S>
class FusedAttention {
 public:
  using W = typename FusedWork<S>::W;

  /// work: must outlive this.
  FusedAttention(FusedWork<S>& work, const at::Tensor& turns) : work_(work), turns_(turns) {}

  /// Writes xs (nh, B, T, N) and scores (nh, B, T, span); returns S x, (nh, B, T, D) of W.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& encoder,
                                   const at::Tensor& xs, const at::Tensor& scores);

  /// d_attended (nh, B, T, D) of S; d_xs: what xs gets from elsewhere. Adds the encoder's gradient,
  /// spoils scores, returns the gradient of x, (B, T, D) of W.
  [[nodiscard]] at::Tensor backward(const at::Tensor& d_attended, const at::Tensor& x,
                                    const at::Tensor& encoder, const at::Tensor& xs,
                                    const at::Tensor& d_xs, const at::Tensor& scores,
                                    const GradientSum& gradient);

 private:
  using Worker = typename FusedWork<S>::Worker;
  using Input = typename FusedWork<S>::Input;
  template <typename T>
  using Matrix = kernels::Matrix<T>;

  // A span's square of a tensor (..., T, span), of the sequence `index`.
  template <typename T>
  [[nodiscard]] Matrix<T> square(const at::Tensor& scores, std::int64_t index,
                                 const Span& span) const;
  // The state (chunk, D) of a worker.
  [[nodiscard]] Matrix<W> state(Worker& worker, const NeuronRange& range) const;
  // A state as a factor.
  [[nodiscard]] Input rounded(Worker& worker, const Matrix<W>& state) const;
  [[nodiscard]] const W* turns_of(std::int64_t position, const NeuronRange& range) const;

  // The q of a span, in the worker's first tile.
  [[nodiscard]] Matrix<S> turned(Worker& worker, const Matrix<S>& xs, const Span& span,
                                 const NeuronRange& range) const;
  [[nodiscard]] bool is_last(const Span& span) const {
    return span.begin + span.count == work_.shape().length;
  }
  // Adds what a span's neurons read of the state before it, and adds the span to the state.
  void read_state(Worker& worker, const Matrix<S>& q, const Input& x, const Span& span,
                  const NeuronRange& range, const Matrix<W>& attended);
  void score(const at::Tensor& parts, const at::Tensor& scores);
  [[nodiscard]] at::Tensor apply_scores(const at::Tensor& x, const at::Tensor& scores);

  [[nodiscard]] Matrix<W> sums_of_square(Worker& worker, const Matrix<S>& square) const;
  [[nodiscard]] at::Tensor backward_of_scores(const at::Tensor& d_attended, const at::Tensor& x,
                                              const at::Tensor& scores);
  void backward_of_reading(Worker& worker, const Matrix<S>& q, const Input& x,
                           const Input& d_attended, const Span& span, const NeuronRange& range,
                           const Matrix<W>& d_q);
  void backward_of_writing(Worker& worker, const Matrix<S>& q, const Input& x,
                           const Input& d_attended, const Span& span, const NeuronRange& range,
                           const Matrix<W>& d_q, const Matrix<W>& d_x);

  FusedWork<S>& work_;
  at::Tensor turns_;
};

extern template class FusedAttention<float>;
extern template class FusedAttention<double>;
extern template class FusedAttention<c10::BFloat16>;

}  // namespace dtrain::model::bdh
