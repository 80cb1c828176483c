#include "dtrain/model/bdh/internal/fused/fused_attention.h"

#include <type_traits>

#include "dtrain/model/bdh/internal/strict_lower.h"

namespace dtrain::model::bdh {

template <typename S>
template <typename T>
kernels::Matrix<T> FusedAttention<S>::square(const at::Tensor& scores, std::int64_t index,
                                             const Span& span) const {
  const FusedShape& shape = work_.shape();
  T* data = scores.mutable_data_ptr<T>() + (index * shape.length + span.begin) * shape.span;
  return {data, span.count, span.count, shape.span};
}

template <typename S>
kernels::Matrix<typename FusedAttention<S>::W> FusedAttention<S>::state(
    Worker& worker, const NeuronRange& range) const {
  const std::int64_t width = work_.shape().width;
  worker.square.require(work_.shape().chunk() * width);
  return {worker.square.data(), range.count, width};
}

template <typename S>
typename FusedAttention<S>::Input FusedAttention<S>::rounded(Worker& worker,
                                                             const Matrix<W>& state) const {
  if constexpr (std::is_same_v<S, W>) {
    return state.read_only();
  } else {
    worker.rounded.require(work_.shape().chunk() * state.columns);
    work_.rows().narrow(state.data, stored(worker.rounded.data()), state.rows * state.columns);
    return {worker.rounded.data(), state.rows, state.columns};
  }
}

template <typename S>
const typename FusedAttention<S>::W* FusedAttention<S>::rotations_of(
    std::int64_t position, const NeuronRange& range) const {
  return rotations_.const_data_ptr<W>() + position * work_.shape().neurons + range.begin;
}

template <typename S>
kernels::Matrix<S> FusedAttention<S>::rotated(Worker& worker, const Matrix<S>& xs, const Span& span,
                                              const NeuronRange& range) const {
  const Matrix<S> q = work_.tile_in(worker.first, span, range);
  const Matrix<S> rows = rows_of(xs, span);
  for (std::int64_t t = 0; t < span.count; ++t) {
    work_.rows().rotate(stored(rows.row(t)), rotations_of(span.begin + t, range), stored(q.row(t)),
                        range.count);
  }
  return q;
}

template <typename S>
at::Tensor FusedAttention<S>::forward(const at::Tensor& x, const at::Tensor& encoder,
                                      const at::Tensor& xs, const at::Tensor& scores) {
  const FusedShape& shape = work_.shape();
  const bool in_place = shape.groups_per_head() == 1 && std::is_same_v<S, W>;
  const at::Tensor parts =
      in_place ? scores
               : work_.wide_empty({shape.head_groups(), shape.batch, shape.length, shape.span});
  at::Tensor by_state;
  if (shape.has_state()) {
    by_state =
        work_.wide_empty({shape.head_groups(), shape.batch, shape.length, shape.width}).zero_();
  }
  work_.for_each_tile([&](Worker& worker, const Tile& place) {
    const auto& [head_group, head, sample, range] = place;
    const std::int64_t index = head_group * shape.batch + sample;
    const Input input = work_.input(x, sample);
    const Matrix<S> out = work_.tile(xs, head, sample, range);
    for_each_span(shape, [&](const Span& span) {
      work_.encode(worker, rows_of(input, span), work_.weight_rows(encoder, head, range),
                   rows_of(out, span));
      const Matrix<S> q = rotated(worker, out, span, range);
      lower_outer(worker.product, q.read_only(), q.read_only(), square<W>(parts, index, span),
                  !place.is_first_of_group());
      if (shape.has_state()) {
        attend_to_state(worker, q, rows_of(input, span), span, range,
                        rows_of(work_.template stream<W>(by_state, index), span));
      }
    });
  });
  sum_scores(parts, scores);
  const at::Tensor attended = apply_scores(x, scores);
  if (shape.has_state()) attended.add_(work_.sum_groups(by_state));
  return attended;
}

template <typename S>
void FusedAttention<S>::attend_to_state(Worker& worker, const Matrix<S>& q, const Input& x,
                                        const Span& span, const NeuronRange& range,
                                        const Matrix<W>& attended) {
  const Matrix<W> past = state(worker, range);
  if (span.begin > 0) worker.product.add(q.read_only(), rounded(worker, past), attended);
  if (is_last(span)) return;  // no later span reads the state
  worker.product.multiply(q.transposed().read_only(), x, past, span.begin > 0);
}

// Sums the scores over the neuron groups of each head, and zeros the diagonal and upper triangle.
template <typename S>
void FusedAttention<S>::sum_scores(const at::Tensor& parts, const at::Tensor& scores) {
  const FusedShape& shape = work_.shape();
  const bool in_place = parts.is_same(scores);
  kernels::run_tasks(shape.heads * shape.batch, [&](std::int64_t task, std::int64_t) {
    const std::int64_t head = task / shape.batch;
    const std::int64_t sample = task % shape.batch;
    for_each_span(shape, [&](const Span& span) {
      const Matrix<S> sum = square<S>(scores, task, span);
      for (std::int64_t t = 0; t < span.count && !in_place; ++t) {
        const auto group_scores = [&](std::int64_t group) {
          const std::int64_t head_group = head * shape.groups_per_head() + group;
          return square<W>(parts, head_group * shape.batch + sample, span).row(t);
        };
        for (std::int64_t group = 1; group < shape.groups_per_head(); ++group) {
          work_.rows().add(group_scores(group), group_scores(0), t);
        }
        work_.rows().narrow(group_scores(0), stored(sum.row(t)), t);
      }
      clear_upper(sum);
    });
  });
}

template <typename S>
at::Tensor FusedAttention<S>::apply_scores(const at::Tensor& x, const at::Tensor& scores) {
  const FusedShape& shape = work_.shape();
  const at::Tensor attended =
      work_.wide_empty({shape.heads, shape.batch, shape.length, shape.width});
  kernels::run_tasks(shape.heads * shape.batch, [&](std::int64_t task, std::int64_t index) {
    const Input input = work_.input(x, task % shape.batch);
    for_each_span(shape, [&](const Span& span) {
      lower_times(work_.worker(index).product, square<S>(scores, task, span).read_only(),
                  rows_of(input, span), rows_of(work_.template stream<W>(attended, task), span));
    });
  });
  return attended;
}

// Returns the accumulator of a score matrix: the matrix itself, or scratch memory if S is narrower.
template <typename S>
kernels::Matrix<typename FusedAttention<S>::W> FusedAttention<S>::square_accumulator(
    Worker& worker, const Matrix<S>& square) const {
  if constexpr (std::is_same_v<S, W>) {
    return square;
  } else {
    worker.square.require(work_.shape().span * work_.shape().span);
    return {worker.square.data(), square.rows, square.columns};
  }
}

// Returns the gradient of x as values, (nh, B, T, D); overwrites the scores with the gradient of S
// plus its transpose.
template <typename S>
at::Tensor FusedAttention<S>::scores_backward(const at::Tensor& d_attended, const at::Tensor& x,
                                              const at::Tensor& scores) {
  const FusedShape& shape = work_.shape();
  const at::Tensor d_values =
      work_.wide_empty({shape.heads, shape.batch, shape.length, shape.width});
  kernels::run_tasks(shape.heads * shape.batch, [&](std::int64_t task, std::int64_t index) {
    Worker& worker = work_.worker(index);
    for_each_span(shape, [&](const Span& span) {
      const Matrix<S> score = square<S>(scores, task, span);
      const Input gradient = rows_of(work_.input(d_attended, task), span);
      const Input values = rows_of(work_.input(x, task % shape.batch), span);
      lower_transposed_times(worker.product, score.read_only(), gradient,
                             rows_of(work_.template stream<W>(d_values, task), span));
      const Matrix<W> d_score = square_accumulator(worker, score);
      lower_outer(worker.product, gradient, values, d_score, /*adds=*/false);
      symmetric_from_lower(d_score, score);
    });
  });
  return d_values;
}

// The gradient of q through q M, where M is the sum of qᵀ x over earlier spans.
template <typename S>
void FusedAttention<S>::state_read_backward(Worker& worker, const Matrix<S>& q, const Input& x,
                                            const Input& d_attended, const Span& span,
                                            const NeuronRange& range, const Matrix<W>& d_q) {
  const Matrix<W> past = state(worker, range);
  if (span.begin > 0) {
    worker.product.add(d_attended, rounded(worker, past).transposed(), d_q);
  }
  if (is_last(span)) return;
  worker.product.multiply(q.transposed().read_only(), x, past, span.begin > 0);
}

// The gradients through qᵀ x, which the span adds to M of all later spans: the gradient of M is the
// sum of qᵀ d_attended over them.
template <typename S>
void FusedAttention<S>::state_write_backward(Worker& worker, const Matrix<S>& q, const Input& x,
                                             const Input& d_attended, const Span& span,
                                             const NeuronRange& range, const Matrix<W>& d_q,
                                             const Matrix<W>& d_x) {
  const Matrix<W> d_future = state(worker, range);
  if (!is_last(span)) {
    const Input factor = rounded(worker, d_future);
    worker.product.add(x, factor.transposed(), d_q);
    worker.product.add(q.read_only(), factor, d_x);
  }
  if (span.begin == 0) return;
  worker.product.multiply(q.transposed().read_only(), d_attended, d_future, !is_last(span));
}

template <typename S>
at::Tensor FusedAttention<S>::backward(const at::Tensor& d_attended, const at::Tensor& x,
                                       const at::Tensor& encoder, const at::Tensor& xs,
                                       const at::Tensor& d_xs, const at::Tensor& scores,
                                       const GradientSum& gradient) {
  const FusedShape& shape = work_.shape();
  const at::Tensor d_values = scores_backward(d_attended, x, scores);
  const at::Tensor parts =
      work_.wide_empty({shape.head_groups(), shape.batch, shape.length, shape.width});
  if (shape.has_state()) parts.zero_();
  work_.for_each_adding_tile([&](Worker& worker, const Tile& tile, const auto& wait) {
    const auto& [head_group, head, sample, range] = tile;
    const std::int64_t place = head * shape.batch + sample;
    const Input input = work_.input(x, sample);
    const Input d_out = work_.input(d_attended, place);
    const Matrix<W> d_x = work_.template stream<W>(parts, head_group * shape.batch + sample);
    worker.sums.require(shape.length * shape.chunk());  // all spans: there are two passes over them
    const Matrix<W> d_q{worker.sums.data(), shape.length, range.count};
    const Matrix<S> neurons = work_.tile(xs, head, sample, range);
    const Matrix<S> by_gate = work_.tile(d_xs, head, sample, range);
    for_each_span(shape, [&](const Span& span) {
      const Matrix<S> q = rotated(worker, neurons, span, range);
      worker.product.write(square<S>(scores, place, span).read_only(), q.read_only(),
                           rows_of(d_q, span));
      if (shape.has_state()) {
        state_read_backward(worker, q, rows_of(input, span), rows_of(d_out, span), span, range,
                            rows_of(d_q, span));
      }
    });
    for_each_span_reversed(shape, [&](const Span& span) {
      if (shape.has_state()) {
        state_write_backward(worker, rotated(worker, neurons, span, range), rows_of(input, span),
                             rows_of(d_out, span), span, range, rows_of(d_q, span),
                             rows_of(d_x, span));
      }
      const Matrix<S> d_sums = work_.tile_in(worker.second, span, range);
      const Matrix<W> d_rotated = rows_of(d_q, span);
      for (std::int64_t t = 0; t < span.count; ++t) {
        work_.rows().encode_backward(d_rotated.row(t), stored(rows_of(by_gate, span).row(t)),
                                     stored(rows_of(neurons, span).row(t)),
                                     rotations_of(span.begin + t, range), stored(d_sums.row(t)),
                                     range.count);
      }
      if (is_last(span)) wait();
      work_.add_gradient(worker, d_sums, rows_of(input, span), gradient, head, range,
                         sample > 0 || !is_last(span));
      worker.product.multiply(d_sums.read_only(), work_.weight_rows(encoder, head, range),
                              rows_of(d_x, span), shape.has_state() || !tile.is_first_of_group());
    });
  });
  const at::Tensor d_x = work_.sum_parts(parts);
  for (std::int64_t head = 0; head < shape.heads; ++head) d_x.add_(d_values[head]);
  return d_x;
}

template class FusedAttention<float>;
template class FusedAttention<double>;
template class FusedAttention<c10::BFloat16>;

}  // namespace dtrain::model::bdh
