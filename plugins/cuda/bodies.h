// What one thread of each of our kernels does: plain functions of an index, which the CPU can
// call too, so that a test compares them with the CPU's operators.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dtrain/base/device_function.h"
#include "dtrain/base/philox.h"
#include "dtrain/model/bdh/rope_element.h"
#include "dtrain/model/dropout_element.h"
#include "dtrain/optim/update_element.h"

namespace dtrain::cuda {

/// Dropout: index counts the Philox counters of all rows, each of which serves eight neurons.
template <typename scalar_t>
struct DropoutBody {
  static constexpr std::int64_t kCounters = 8;  ///< of a block of neurons

  model::DropoutRows rows;
  base::PhiloxKey key;
  model::DropRule<scalar_t> rule;
  const scalar_t* in;
  scalar_t* out;

  /// Blocks that the neurons of one row touch at most.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::int64_t blocks_of_row() const {
    const bool is_aligned =
        rows.first_neuron % model::kDropoutBlock == 0 && rows.neurons % model::kDropoutBlock == 0;
    return rows.neurons / model::kDropoutBlock + (is_aligned ? 0 : 2);
  }
  [[nodiscard]] std::int64_t size(std::int64_t num_rows) const {
    return num_rows * blocks_of_row() * kCounters;
  }

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t counter = index % kCounters;
    const std::int64_t row = index / kCounters / blocks_of_row();
    const std::int64_t first = rows.first_of(row);
    const std::int64_t block = first / model::kDropoutBlock + index / kCounters % blocks_of_row();
    const model::DropoutRow words = rows.counters_of(row);
    const auto random =
        base::philox({static_cast<std::uint32_t>(block * kCounters + counter), words.position,
                      words.sample_low, words.level_and_sample_high},
                     key);
    for (std::int64_t half = 0; half < 8; ++half) {
      const std::int64_t neuron = block * model::kDropoutBlock + half * kCounters + counter - first;
      if (neuron < 0 || neuron >= rows.neurons) continue;
      const std::int64_t at = row * rows.neurons + neuron;
      const std::uint32_t word = random[static_cast<std::size_t>(half / 2)];
      out[at] = model::dropped(in[at], half % 2 == 0 ? word & 0xFFFF : word >> 16, rule);
    }
  }
};

/// Rotation: index counts the pairs of all rows.
template <typename scalar_t>
struct RopeBody {
  const scalar_t* in;
  scalar_t* out;
  const float* table;
  std::int64_t table_pairs;  ///< of all positions
  float direction;

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t index) const {
    model::bdh::turn_pair(in + 2 * index, out + 2 * index, table + 2 * (index % table_pairs),
                          direction);
  }
};

/// AdamW: index counts the elements. What the host does not know is read by each thread.
template <typename T>
struct AdamWBody {
  optim::AdamWSettings settings;
  const float* num_updates;
  const double* learning_rate;
  const bool* may_update;
  T* weight;
  const T* gradient;
  T* first;
  T* second;

  /// The same with the numbers that all elements share.
  struct Prepared {
    AdamWBody body;
    optim::AdamWFactors<T> factors;
    bool may_update;

    DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t i) const {
      if (!may_update) return;
      optim::adamw_element(factors, body.gradient[i], body.weight[i], body.first[i],
                           body.second[i]);
    }
  };
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION Prepared prepared() const {
    return {
        *this,
        optim::adamw_factors<T>(settings, *learning_rate, static_cast<std::int64_t>(*num_updates)),
        *may_update};
  }
};

/// SGD: index counts the elements.
template <typename T>
struct SgdBody {
  double momentum;
  double weight_decay;
  const double* learning_rate;
  const bool* may_update;
  T* weight;
  const T* gradient;
  T* buffer;  ///< null without momentum

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t i) const {
    if (!*may_update) return;
    const optim::SgdFactors<T> factors{.decay = static_cast<T>(weight_decay),
                                       .momentum = static_cast<T>(momentum),
                                       .rate = static_cast<T>(*learning_rate)};
    if (buffer == nullptr) return optim::sgd_element(factors, gradient[i], weight[i]);
    optim::momentum_element(factors, gradient[i], weight[i], buffer[i]);
  }
};

/// Scaling: index counts the elements.
template <typename T>
struct ScaleBody {
  const double* factor;
  T* values;

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t i) const {
    if (*factor == 1.0) return;
    values[i] = values[i] * static_cast<T>(*factor);
  }
};

/// A run of slots that are added from the first to the last: a row of norm_squares's table.
struct SlotRange {
  std::int64_t first;
  std::int64_t count;
};

}  // namespace dtrain::cuda
