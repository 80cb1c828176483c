#include "dtrain/model/bdh/internal/fused/fused_gate.h"

#include "dtrain/model/dropout_element.h"

namespace dtrain::model::bdh {

using kernels::Matrix;

template <typename S>
FusedGate<S>::FusedGate(FusedWork<S>& work, const FusedDropout& dropout)
    : work_(work),
      dropout_(dropout),
      key_(base::philox_key(dropout.seed, base::RandomPurpose::dropout)) {
  const auto rule = drop_rule<S>(dropout.probability);
  mask_ = {.threshold = rule.threshold, .scale = static_cast<double>(rule.scale)};
}

template <typename S>
RowMask FusedGate<S>::mask_of(std::int64_t head, std::int64_t sample, std::int64_t position,
                              const NeuronRange& range, std::vector<std::uint32_t>& halves) const {
  if (dropout_.probability == 0) return mask_;
  const std::int64_t first = dropout_.first_neuron + head * work_.shape().neurons + range.begin;
  const std::int64_t skipped = first % kDropoutBlock;
  const DropoutRow row = dropout_row(dropout_.first_sample + sample, dropout_.level, position);
  for (std::int64_t at = 0; at < skipped + range.count; at += kDropoutBlock) {
    random_halves(static_cast<std::uint32_t>((first - skipped + at) / kDropoutBlock), row, key_,
                  halves.data() + at);
  }
  RowMask mask = mask_;
  mask.halves = halves.data() + skipped;
  return mask;
}

template <typename S>
at::Tensor FusedGate<S>::forward(const at::Tensor& y_kv, const at::Tensor& xs,
                                 const at::Tensor& encoder_v, const at::Tensor& decoder,
                                 const at::Tensor& ys) {
  const FusedShape& shape = work_.shape();
  const at::Tensor parts =
      work_.wide_empty({shape.head_groups(), shape.batch, shape.length, shape.width});
  work_.for_each_tile([&](auto& worker, const Tile& place) {
    const auto& [head_group, head, sample, range] = place;
    const Matrix<W> decoded = work_.template stream<W>(parts, head_group * shape.batch + sample);
    for_each_span(shape, [&](const Span& span) {
      const Matrix<W> sums = work_.tile_in(worker.sums, span, range);
      const Matrix<S> gated = work_.tile_in(worker.first, span, range);
      const Matrix<S> by = rows_of(work_.tile(xs, head, sample, range), span);
      const Matrix<S> out = ys.defined() ? rows_of(work_.tile(ys, head, sample, range), span)
                                         : work_.tile_in(worker.second, span, range);
      worker.product.write(rows_of(work_.input(y_kv, head * shape.batch + sample), span),
                           work_.weight_rows(encoder_v, head, range).transposed(), sums);
      for (std::int64_t t = 0; t < span.count; ++t) {
        work_.rows().gate(sums.row(t), stored(by.row(t)),
                          mask_of(head, sample, span.begin + t, range, worker.halves),
                          stored(out.row(t)), stored(gated.row(t)), range.count);
      }
      worker.product.multiply(gated.read_only(), work_.weight_rows(decoder, head, range),
                              rows_of(decoded, span), !place.is_first_of_group());
    });
  });
  return work_.sum_parts(parts);
}

template <typename S>
at::Tensor FusedGate<S>::backward(const at::Tensor& d_decoded, const at::Tensor& y_kv,
                                  const at::Tensor& xs, const at::Tensor& encoder_v,
                                  const at::Tensor& decoder, const at::Tensor& ys,
                                  const Gradients& gradients) {
  const FusedShape& shape = work_.shape();
  const at::Tensor parts =
      work_.wide_empty({shape.head_groups(), shape.batch, shape.length, shape.width});
  work_.for_each_adding_tile([&](auto& worker, const Tile& place, const auto& wait) {
    const auto& [head_group, head, sample, range] = place;
    const auto d_input = work_.template stream<W>(parts, head_group * shape.batch + sample);
    for_each_span(shape, [&](const Span& span) {
      const auto d_out = rows_of(work_.input(d_decoded, sample), span);
      const Matrix<W> d_gated = work_.tile_in(worker.sums, span, range);
      const Matrix<S> gated = work_.tile_in(worker.first, span, range);
      const Matrix<S> d_sums = work_.tile_in(worker.second, span, range);
      const Matrix<S> by = rows_of(work_.tile(xs, head, sample, range), span);
      const Matrix<S> out = rows_of(work_.tile(ys, head, sample, range), span);
      worker.product.write(d_out, work_.weight_rows(decoder, head, range).transposed(), d_gated);
      for (std::int64_t t = 0; t < span.count; ++t) {
        work_.rows().gate_backward(d_gated.row(t), stored(by.row(t)),
                                   mask_of(head, sample, span.begin + t, range, worker.halves),
                                   stored(out.row(t)), stored(gated.row(t)), stored(d_sums.row(t)),
                                   range.count);
      }
      if (span.begin == 0) wait();
      const bool has_begun = sample > 0 || span.begin > 0;
      work_.add_gradient(worker, gated, d_out, gradients.decoder, head, range, has_begun);
      work_.add_gradient(worker, d_sums,
                         rows_of(work_.input(y_kv, head * shape.batch + sample), span),
                         gradients.encoder_v, head, range, has_begun);
      worker.product.multiply(d_sums.read_only(), work_.weight_rows(encoder_v, head, range),
                              rows_of(d_input, span), !place.is_first_of_group());
    });
  });
  return work_.sum_groups(parts);
}

template class FusedGate<float>;
template class FusedGate<double>;
template class FusedGate<c10::BFloat16>;

}  // namespace dtrain::model::bdh
