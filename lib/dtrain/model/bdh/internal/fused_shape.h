// How a fused level cuts its work. The cuts depend on sizes alone, never on threads, so that every
// sum has the same bits on any number of them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dtrain::model::bdh {

/// Sizes of one microbatch on one rank. Neurons of a head come in groups, each of which one thread
/// computes at a time (a lane is one group of one head), and groups in chunks that fit its cache.
struct FusedShape {
  std::int64_t batch = 0;    ///< B
  std::int64_t length = 0;   ///< T
  std::int64_t width = 0;    ///< D
  std::int64_t heads = 0;    ///< nh of this rank
  std::int64_t neurons = 0;  ///< N of this rank
  std::int64_t span = 0;     ///< positions of which a square of scores is computed; T: of all

  [[nodiscard]] std::int64_t rows() const { return batch * length; }
  [[nodiscard]] std::int64_t row_elements() const { return rows() * width; }
  [[nodiscard]] std::int64_t neuron_elements() const { return rows() * heads * neurons; }
  [[nodiscard]] std::int64_t score_elements() const { return rows() * heads * span; }
  [[nodiscard]] bool has_state() const { return span < length; }

  [[nodiscard]] std::int64_t groups() const {
    return (neurons + kGroupNeurons - 1) / kGroupNeurons;
  }
  [[nodiscard]] std::int64_t lanes() const { return heads * groups(); }
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

/// A tile of neurons.
struct TilePlace {
  std::int64_t lane;
  std::int64_t head;
  std::int64_t sample;
  NeuronRange range;

  [[nodiscard]] bool is_first_of_lane() const {
    return range.begin % FusedShape::kGroupNeurons == 0;
  }
};

/// Positions [begin, begin + count) of a sequence.
struct Span {
  std::int64_t begin;
  std::int64_t count;
};

/// The rows of a matrix that are a span's positions.
template <typename M>
[[nodiscard]] M part(const M& matrix, const Span& span) {
  return matrix.row_block(span.begin, span.count);
}

/// Calls of_span(Span) for the spans of a sequence, ascending.
template <typename OfSpan>
void for_each_span(const FusedShape& shape, const OfSpan& of_span) {
  for (std::int64_t at = 0; at < shape.length; at += shape.span) {
    of_span(Span{at, std::min(shape.span, shape.length - at)});
  }
}

/// Calls of_span(Span) for the spans of a sequence, descending.
template <typename OfSpan>
void for_each_span_back(const FusedShape& shape, const OfSpan& of_span) {
  for (std::int64_t at = (shape.length - 1) / shape.span * shape.span; at >= 0; at -= shape.span) {
    of_span(Span{at, std::min(shape.span, shape.length - at)});
  }
}

/// Calls of_chunk(NeuronRange) for the chunks of a lane, ascending.
template <typename OfChunk>
void for_each_chunk(const FusedShape& shape, std::int64_t lane, const OfChunk& of_chunk) {
  const std::int64_t begin = lane % shape.groups() * FusedShape::kGroupNeurons;
  const std::int64_t end = std::min(shape.neurons, begin + FusedShape::kGroupNeurons);
  for (std::int64_t at = begin; at < end; at += shape.chunk()) {
    of_chunk(NeuronRange{at, std::min(shape.chunk(), end - at)});
  }
}

}  // namespace dtrain::model::bdh
