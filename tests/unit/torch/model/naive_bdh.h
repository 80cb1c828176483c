// A naive, scalar implementation of BDH from the equations of docs/guide/model.md, as test oracle. It
// shares no code with the blocks except the table of rotations (checked by rope_test; an own float32
// table would differ in the last bit).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "dtrain/base/philox.h"
#include "dtrain/model/bdh/internal/rope.h"
#include "unit/torch/model/bdh_fixture.h"

namespace dtrain::testing {

// Dropout of one neuron as in docs/guide/model.md, without vectors, blocks or batches.

/// One neuron of one token; `neuron` is numbered over all heads.
struct NeuronPlace {
  std::uint64_t seed = 0;
  std::int64_t level = 0;
  std::int64_t sample = 0;
  std::int64_t position = 0;
  std::int64_t neuron = 0;
};

/// The factor of its value: 0, or the inverse keep probability.
inline double scalar_dropout(const NeuronPlace& place, double probability) {
  const std::int64_t counter = place.neuron / 64 * 8 + place.neuron % 8;
  const auto words =
      base::philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(place.position),
                    static_cast<std::uint32_t>(place.sample),
                    static_cast<std::uint32_t>(place.level * 65536 + (place.sample >> 32))},
                   base::philox_key(place.seed, base::RandomPurpose::dropout));
  const std::int64_t half = place.neuron / 8 % 8;
  const std::uint32_t word = words[static_cast<std::size_t>(half / 2)];
  const std::uint32_t bits = half % 2 == 0 ? word & 0xFFFF : word >> 16;
  const double threshold = std::round(probability * 65536);
  return bits < threshold ? 0 : 65536 / (65536 - threshold);
}

using Vector = std::vector<double>;

/// The dropout of a sample; probability 0 disables it.
struct NaiveDropout {
  double probability = 0;
  std::uint64_t seed = 0;
  std::int64_t sample = 0;  ///< below 2^32
};

inline Vector naive_norm(const Vector& x) {
  const auto count = static_cast<double>(x.size());
  double mean = 0;
  for (const double value : x) mean += value / count;
  double variance = 0;
  for (const double value : x) variance += (value - mean) * (value - mean) / count;
  Vector out;
  for (const double value : x) out.push_back((value - mean) / std::sqrt(variance + 1e-5));
  return out;
}

/// relu of neuron i of a head: weight (D, N) of that head.
inline Vector naive_encode(const Vector& x, const at::Tensor& weight) {
  auto w = weight.accessor<double, 2>();
  Vector out(static_cast<std::size_t>(weight.size(1)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::size_t d = 0; d < x.size(); ++d) {
      out[i] += x[d] * w[static_cast<std::int64_t>(d)][static_cast<std::int64_t>(i)];
    }
    out[i] = std::max(out[i], 0.0);
  }
  return out;
}

inline Vector naive_rope(const Vector& v, std::int64_t position) {
  const at::Tensor table = model::bdh::rope_rotations(position, position + 1, {std::ssize(v)},
                                                      at::kDouble);  // (1, N/2, 2)
  Vector out(v.size());
  for (std::size_t k = 0; k + 1 < v.size(); k += 2) {
    const at::Tensor turn = table[0][static_cast<std::int64_t>(k / 2)];
    const auto cosine = turn[0].item<double>();
    const auto sine = turn[1].item<double>();
    out[k] = v[k] * cosine - v[k + 1] * sine;
    out[k + 1] = v[k + 1] * cosine + v[k] * sine;
  }
  return out;
}

/// Applies one level to all positions of a sequence: x (T)(D) -> (T)(D).
inline std::vector<Vector> naive_level(const BdhFixture& fixture, const std::vector<Vector>& x,
                                       std::int64_t level, const NaiveDropout& dropout) {
  const std::string prefix =
      fixture.sizes.tie_layers ? "" : "levels." + std::to_string(level) + ".";
  const at::Tensor encoder = fixture.exported(prefix + "encoder");      // (nh, D, N)
  const at::Tensor encoder_v = fixture.exported(prefix + "encoder_v");  // (nh, D, N)
  const at::Tensor decoder = fixture.exported(prefix + "decoder");      // (nh*N, D)
  auto decoder_rows = decoder.accessor<double, 2>();
  const std::size_t width = x[0].size();
  std::vector<Vector> decoded(x.size(), Vector(width));
  for (std::int64_t head = 0; head < fixture.sizes.heads; ++head) {
    std::vector<Vector> xs;
    std::vector<Vector> q;
    for (std::size_t t = 0; t < x.size(); ++t) {
      xs.push_back(naive_encode(x[t], encoder[head]));
      q.push_back(naive_rope(xs[t], static_cast<std::int64_t>(t)));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Vector attended(width);
      for (std::size_t s = 0; s < t; ++s) {
        double score = 0;
        for (std::size_t i = 0; i < q[t].size(); ++i) score += q[t][i] * q[s][i];
        for (std::size_t d = 0; d < width; ++d) attended[d] += score * x[s][d];
      }
      const Vector ys = naive_encode(naive_norm(attended), encoder_v[head]);
      for (std::size_t i = 0; i < ys.size(); ++i) {
        const std::int64_t neuron = head * fixture.sizes.neurons + static_cast<std::int64_t>(i);
        const NeuronPlace place{.seed = dropout.seed,
                                .level = level,
                                .sample = dropout.sample,
                                .position = static_cast<std::int64_t>(t),
                                .neuron = neuron};
        const double gated = xs[t][i] * ys[i] * scalar_dropout(place, dropout.probability);
        for (std::size_t d = 0; d < width; ++d) {
          decoded[t][d] += gated * decoder_rows[neuron][static_cast<std::int64_t>(d)];
        }
      }
    }
  }
  std::vector<Vector> out;
  for (std::size_t t = 0; t < x.size(); ++t) {
    Vector sum = naive_norm(decoded[t]);
    for (std::size_t d = 0; d < width; ++d) sum[d] += x[t][d];
    out.push_back(naive_norm(sum));
  }
  return out;
}

/// ids (T) -> logits (T, V) of one sample.
inline at::Tensor naive_logits(const BdhFixture& fixture, const at::Tensor& ids,
                               const NaiveDropout& dropout) {
  const at::Tensor embed = fixture.exported("embed.weight");  // (V, D)
  std::vector<Vector> x;
  for (std::int64_t t = 0; t < ids.numel(); ++t) {
    const at::Tensor row = embed[ids[t].item<std::int64_t>()];
    const auto* data = row.const_data_ptr<double>();
    x.push_back(naive_norm(Vector(data, data + row.numel())));
  }
  for (std::int64_t level = 0; level < fixture.sizes.layers; ++level) {
    x = naive_level(fixture, x, level, dropout);
  }
  const at::Tensor lm_head = fixture.exported("lm_head");  // (D, V)
  auto head = lm_head.accessor<double, 2>();
  at::Tensor logits =
      at::zeros({ids.numel(), fixture.sizes.vocab}, at::TensorOptions().dtype(at::kDouble));
  auto out = logits.accessor<double, 2>();
  for (std::int64_t t = 0; t < ids.numel(); ++t) {
    for (std::int64_t v = 0; v < fixture.sizes.vocab; ++v) {
      for (std::int64_t d = 0; d < fixture.sizes.width; ++d) {
        out[t][v] += x[static_cast<std::size_t>(t)][static_cast<std::size_t>(d)] * head[d][v];
      }
    }
  }
  return logits;
}

}  // namespace dtrain::testing
