// Divides the work of a fused BDH layer (level) into tiles. The tiles depend only on sizes, so
// results are bit-identical for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dtrain::model::bdh {

/// Sizes of one microbatch on one rank. The neurons of each head are divided into head groups. One
/// thread at a time computes a head group, in chunks that fit its cache.
struct FusedShape {
  std::int64_t batch = 0;    ///< B
  std::int64_t length = 0;   ///< T
  std::int64_t width = 0;    ///< D
  std::int64_t heads = 0;    ///< nh of this rank
  std::int64_t neurons = 0;  ///< N of this rank
  std::int64_t span = 0;     ///< positions per score matrix; T for full attention

  [[nodiscard]] std::int64_t rows() const { return batch * length; }
  [[nodiscard]] std::int64_t row_elements() const { return rows() * width; }
  [[nodiscard]] std::int64_t neuron_elements() const { return rows() * heads * neurons; }
  [[nodiscard]] std::int64_t score_elements() const { return rows() * heads * span; }
  [[nodiscard]] bool has_state() const { return span < length; }

  [[nodiscard]] std::int64_t groups_per_head() const {
    return (neurons + kGroupNeurons - 1) / kGroupNeurons;
  }
  [[nodiscard]] std::int64_t head_groups() const { return heads * groups_per_head(); }
  [[nodiscard]] std::int64_t chunk() const {
    constexpr std::int64_t kTile = 32768;  // elements
    const std::int64_t fitting = kTile / span / kMinChunk * kMinChunk;
    return std::min(neurons, std::clamp<std::int64_t>(fitting, kMinChunk, 256));
  }

  static constexpr std::int64_t kGroupNeurons = 1024;
  static constexpr std::int64_t kMinChunk = 64;  ///< unless a head has fewer neurons
};

/// Neurons [begin, begin + count) of a head.
struct NeuronRange {
  std::int64_t begin;
  std::int64_t count;
};

/// The activations of a chunk of neurons for one sample: (T, chunk).
struct Tile {
  std::int64_t head_group;
  std::int64_t head;
  std::int64_t sample;
  NeuronRange range;

  [[nodiscard]] bool is_first_of_group() const {
    return range.begin % FusedShape::kGroupNeurons == 0;
  }
};

/// Positions [begin, begin + count) of a sequence.
struct Span {
  std::int64_t begin;
  std::int64_t count;
};

/// Returns the rows of a matrix at a span's positions.
template <typename M>
[[nodiscard]] M rows_of(const M& matrix, const Span& span) {
  return matrix.row_block(span.begin, span.count);
}

/// Calls of_span(Span) for each span of a sequence, in ascending order.
template <typename OfSpan>
void for_each_span(const FusedShape& shape, const OfSpan& of_span) {
  for (std::int64_t at = 0; at < shape.length; at += shape.span) {
    of_span(Span{at, std::min(shape.span, shape.length - at)});
  }
}

/// Calls of_span(Span) for each span of a sequence, in descending order.
template <typename OfSpan>
void for_each_span_reversed(const FusedShape& shape, const OfSpan& of_span) {
  for (std::int64_t at = (shape.length - 1) / shape.span * shape.span; at >= 0; at -= shape.span) {
    of_span(Span{at, std::min(shape.span, shape.length - at)});
  }
}

/// Calls of_chunk(NeuronRange) for each chunk of a head group, in ascending order.
template <typename OfChunk>
void for_each_chunk(const FusedShape& shape, std::int64_t head_group, const OfChunk& of_chunk) {
  const std::int64_t begin = head_group % shape.groups_per_head() * FusedShape::kGroupNeurons;
  const std::int64_t end = std::min(shape.neurons, begin + FusedShape::kGroupNeurons);
  for (std::int64_t at = begin; at < end; at += shape.chunk()) {
    of_chunk(NeuronRange{at, std::min(shape.chunk(), end - at)});
  }
}

}  // namespace dtrain::model::bdh
